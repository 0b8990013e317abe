// The official JavaScript client against a server: `node check.mjs URL MODEL EMBEDDER`.
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const [url, model, embedder] = process.argv.slice(2);
const ollama = new Ollama({ host: url });
const messages = [{ role: "user", content: "hi" }];
let done = 0;

async function check(name, run) {
  await run();
  done += 1;
  console.log("ok", name);
}

await check("chat", async () => {
  const answer = await ollama.chat({ model, messages, think: false });
  assert.equal(answer.message.content, "Hello there, friend.");
  assert.equal(answer.done_reason, "stop");
});
await check("stream and thinking", async () => {
  let text = "", thinking = "", last;
  for await (const part of await ollama.chat({ model, messages, stream: true, think: true })) {
    text += part.message.content;
    thinking += part.message.thinking ?? "";
    last = part;
  }
  assert.deepEqual([text, thinking, last.done], ["Hello there, friend.", "Let me think.", true]);
  assert.ok(last.total_duration > 0);
});
await check("tools", async () => {
  const parameters = { type: "object", properties: { city: { type: "string" } } };
  const tools = [{ type: "function", function: { name: "weather", description: "d", parameters } }];
  const answer = await ollama.chat({ model, messages: [{ role: "user", content: "weather?" }], tools, think: false });
  assert.deepEqual(answer.message.tool_calls[0].function.arguments, { city: "Paris" });
});
await check("structured output", async () => {
  const format = { type: "object", properties: { n: { type: "integer" } }, required: ["n"] };
  const answer = await ollama.chat({ model, messages, format, think: false });
  assert.deepEqual(JSON.parse(answer.message.content), { n: 0 });
});
await check("generate with context", async () => {
  const first = await ollama.generate({ model, prompt: "hi", think: false });
  const second = await ollama.generate({ model, prompt: "go on", context: first.context, think: false });
  assert.ok(second.prompt_eval_count > first.prompt_eval_count);
  let text = "";
  for await (const part of await ollama.generate({ model, prompt: "hi", stream: true, think: false })) text += part.response;
  assert.equal(text, first.response);
});
await check("embeddings", async () => {
  const answer = await ollama.embed({ model: embedder, input: ["one", "two"] });
  assert.equal(answer.embeddings.length, 2);
  const old = await ollama.embeddings({ model: embedder, prompt: "one" });
  assert.equal(old.embedding.length, answer.embeddings[0].length);
});
await check("list, show, ps, version", async () => {
  const listed = (await ollama.list()).models.map((entry) => entry.model);
  assert.ok(listed.includes(model));
  assert.ok((await ollama.show({ model })).capabilities.includes("completion"));
  assert.ok((await ollama.ps()).models.some((entry) => entry.model === model));
  assert.match((await ollama.version()).version, /^\d+\.\d+\.\d+/);
});
await check("create, copy, delete", async () => {
  const made = [];
  for await (const step of await ollama.create({ model: "mario", from: model, system: "Be Mario.", stream: true })) made.push(step.status);
  assert.equal(made.at(-1), "success");
  assert.equal((await ollama.copy({ source: "mario", destination: "me/luigi" })).status, "success");
  assert.equal((await ollama.show({ model: "me/luigi" })).system, "Be Mario.");
  for (const name of ["mario", "me/luigi"]) assert.equal((await ollama.delete({ model: name })).status, "success");
});
await check("pull", async () => {
  await assert.rejects(async () => {
    for await (const _ of await ollama.pull({ model: "http://127.0.0.1:9/x.gguf", stream: true }));
  }, /not available/);
});
await check("errors", async () => {
  await assert.rejects(ollama.chat({ model: "nobody", messages }), (error) => {
    assert.equal(error.status_code, 404);
    return /model 'nobody' not found/.test(error.message);
  });
});
await check("abort", async () => {
  const stream = await ollama.chat({ model, messages, stream: true });
  stream.abort();
  await assert.rejects(async () => { for await (const _ of stream); }, { name: "AbortError" });
});
console.log("done", done);
