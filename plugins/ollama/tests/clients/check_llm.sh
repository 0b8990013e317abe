# llm with llm-ollama against a server: `sh check_llm.sh BIN MODEL EMBEDDER`, with OLLAMA_HOST and LLM_USER_PATH set.
set -eu
llm=$1/llm model=ollama/$2 embedder=ollama/$3
"$llm" models </dev/null | grep -q "Ollama: $model"
test "$("$llm" -m "$model" -o think false --no-stream hi </dev/null)" = "Hello there, friend."
"$llm" -m "$model" -o think false hi </dev/null | grep -q "Hello there, friend."
"$llm" -m "$model" -o think false --schema 'n int' hi </dev/null | grep -q '"n": *0'
"$llm" embed -m "$embedder" -c one </dev/null | grep -q '^\['
echo "done llm"
