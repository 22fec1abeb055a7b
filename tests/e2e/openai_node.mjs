// openai_node.mjs - the official OpenAI client for JavaScript, unmodified, against inferd.
//
// Started by openai_node.py with INFERD_BASE_URL, INFERD_CHAT_MODEL, INFERD_EMBED_MODEL, INFERD_HAS_CHAT and
// INFERD_TEST_NODE (a folder with node_modules). Prints one line per case, as tests/run.py counts them.
import { createRequire } from "node:module";
import assert from "node:assert/strict";
import path from "node:path";

const require = createRequire(path.join(process.env.INFERD_TEST_NODE, "package.json"));
const { OpenAI, NotFoundError, BadRequestError } = require("openai");
const chatModel = process.env.INFERD_CHAT_MODEL, embedModel = process.env.INFERD_EMBED_MODEL;
const client = new OpenAI({ baseURL: process.env.INFERD_BASE_URL + "/v1", apiKey: "any string", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const noChat = process.env.INFERD_HAS_CHAT === "0";
let failed = 0;

async function check(name, fn, skip) {
  if (skip) {
    console.log(`skip - ${name}: ${skip}`);
    return;
  }
  try {
    await fn();
    console.log(`ok - ${name}`);
  } catch (e) {
    failed = 1;
    console.log(`FAIL - ${name}: ${String(e.message).split("\n")[0]}`);
    console.error(e);
  }
}

await check("node_chat_and_stream", async () => {
  const whole = await client.chat.completions.create({ model: chatModel, messages, max_tokens: 12 });
  assert.equal(whole.choices[0].message.role, "assistant");
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  let text = "", role, finish, usage;
  const stream = await client.chat.completions.create({
    model: chatModel, messages, max_tokens: 12, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    usage = chunk.usage ?? usage;
    role ??= chunk.choices[0]?.delta.role;
    text += chunk.choices[0]?.delta.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
  }
  assert.equal(role, "assistant");
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, whole.choices[0].finish_reason);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
}, noChat && "the model has no chat template");

await check("node_completions", async () => {
  const r = await client.completions.create({ model: chatModel, prompt: "Hello", max_tokens: 5, n: 2 });
  assert.equal(r.choices.length, 2);
  assert.equal(r.choices[0].text, r.choices[1].text);
});

await check("node_leaving_a_stream_early", async () => {
  const stream = await client.completions.create({ model: chatModel, prompt: "Hello", max_tokens: 200, stream: true,
    ignore_eos: true });
  for await (const chunk of stream) {
    assert.equal(chunk.object, "text_completion");
    break;
  }
  assert.equal((await fetch(process.env.INFERD_BASE_URL + "/readyz")).status, 200);
});

await check("node_embeddings", async () => {
  const coded = await client.embeddings.create({ model: embedModel, input: ["a cat", "tax law"] });
  const plain = await client.embeddings.create({ model: embedModel, input: ["a cat", "tax law"], encoding_format: "float" });
  assert.equal(coded.data.length, 2);
  const f32 = (list) => list.map(Math.fround);
  assert.deepEqual(f32(coded.data[1].embedding), f32(plain.data[1].embedding));
});

await check("node_models", async () => {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.ok(ids.includes(chatModel) && ids.includes(embedModel));
  assert.equal((await client.models.retrieve(embedModel)).id, embedModel);
});

await check("node_errors", async () => {
  await assert.rejects(client.models.retrieve("no/such"), (e) =>
    e instanceof NotFoundError && e.code === "MODEL_NOT_FOUND" && e.message.includes("not found"));
  await assert.rejects(client.completions.create({ model: chatModel, prompt: "a", top_p: 7 }), (e) =>
    e instanceof BadRequestError && e.param === "top_p" && e.message.includes("field 'top_p': got 7"));
});

process.exit(failed);
