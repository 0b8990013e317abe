// The official JavaScript client against a running server.
//   node check.mjs URL MODEL BROKEN CRASHING
// MODEL says "Hello there, friend.", calls the tool on "weather"; BROKEN is a model file that cannot be loaded;
// CRASHING dies in the middle of an answer. Prints one line a check; the first failure ends the run.
import assert from "node:assert/strict";
import OpenAI from "openai";

const [url, model, broken, crashing] = process.argv.slice(2);
let sent = 0;
const client = new OpenAI({
  baseURL: `${url}/v1`,
  apiKey: "none",
  maxRetries: 2,
  fetch: (...args) => {
    sent += 1;
    return fetch(...args);
  },
});
const ask = (text) => [{ role: "user", content: text }];
const tools = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];

async function failing(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  assert.fail("no error came");
}

const checks = {
  async models() {
    const ids = [];
    for await (const entry of client.models.list()) ids.push(entry.id);
    assert.ok(ids.includes(model));
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  async chat() {
    const answer = await client.chat.completions.create({ model, messages: ask("hi"), temperature: 0 });
    assert.equal(answer.choices[0].message.content, "Hello there, friend.");
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.ok(answer.usage.total_tokens > 0);
  },
  async "stream with usage"() {
    const stream = await client.chat.completions.create({
      model,
      messages: ask("hi"),
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let last;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      last = chunk;
    }
    assert.equal(text, "Hello there, friend.");
    assert.deepEqual(last.choices, []);
    assert.ok(last.usage.completion_tokens > 0);
  },
  async "tools, streamed by the helper"() {
    const runner = client.chat.completions.stream({ model, messages: ask("weather"), tools });
    const completion = await runner.finalChatCompletion();
    const [call] = completion.choices[0].message.tool_calls;
    assert.equal(call.function.name, "weather");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
    assert.equal(completion.choices[0].finish_reason, "tool_calls");
  },
  async "tools, whole, and sent back"() {
    const first = await client.chat.completions.create({ model, messages: ask("weather"), tools });
    const message = first.choices[0].message;
    const next = await client.chat.completions.create({
      model,
      messages: [
        ...ask("weather"),
        message,
        { role: "tool", tool_call_id: message.tool_calls[0].id, content: "22 C" },
        ...ask("thanks"),
      ],
      tools,
    });
    assert.equal(next.choices[0].message.content, "Hello there, friend.");
  },
  async "JSON schema"() {
    const answer = await client.chat.completions.create({
      model,
      messages: ask("hi"),
      response_format: {
        type: "json_schema",
        json_schema: {
          name: "place",
          strict: true,
          schema: {
            type: "object",
            properties: { city: { type: "string" }, population: { type: "integer" } },
            required: ["city", "population"],
            additionalProperties: false,
          },
        },
      },
    });
    const place = JSON.parse(answer.choices[0].message.content);
    assert.equal(typeof place.city, "string");
    assert.ok(Number.isInteger(place.population));
  },
  async "embeddings, which this client asks in base64"() {
    const asked = await client.embeddings.create({ model, input: ["a", "b"] });
    const plain = await client.embeddings.create({ model, input: ["a", "b"], encoding_format: "float" });
    assert.equal(asked.data.length, 2);
    for (const [index, entry] of asked.data.entries()) {
      const numbers = Float32Array.from(entry.embedding);
      assert.deepEqual(numbers, Float32Array.from(plain.data[index].embedding));
      assert.equal(numbers.length, 16);
    }
  },
  async "errors of its own classes, none of them repeated"() {
    sent = 0;
    const missing = await failing(client.chat.completions.create({ model: "nobody", messages: ask("hi") }));
    assert.ok(missing instanceof OpenAI.NotFoundError);
    assert.equal(missing.code, "model_not_found");
    assert.equal(missing.param, "model");
    assert.ok(missing.requestID);
    const wrong = await failing(client.chat.completions.create({ model, messages: [] }));
    assert.ok(wrong instanceof OpenAI.BadRequestError);
    const body = { model_id: model, model_path: broken };
    const conflict = await failing(client.post("/models/load", { body }));
    assert.ok(conflict instanceof OpenAI.ConflictError);
    const failed = await failing(client.post("/models/load", { body: { ...body, model_id: "broken" } }));
    assert.ok(failed instanceof OpenAI.InternalServerError);
    assert.equal(sent, 4);
  },
  async "an error event raises"() {
    const stream = await client.chat.completions.create({ model: crashing, messages: ask("hi"), stream: true });
    let chunks = 0;
    const error = await failing(
      (async () => {
        for await (const _ of stream) chunks += 1;
      })(),
    );
    assert.ok(error instanceof OpenAI.APIError);
    assert.match(error.message, /died by SIGKILL/);
    assert.ok(chunks > 0);
  },
  async "an aborted stream ends"() {
    const stream = await client.chat.completions.create({ model, messages: ask("hi"), stream: true });
    for await (const _ of stream) break;
    assert.ok(stream.controller.signal.aborted);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok ${name}`);
}
console.log(`done ${Object.keys(checks).length}`);
