// The table of the coordinator's flags: a new flag is one row here and one member of Flags or ApiLimits.
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/request_bounds.h"
#include "coordinator/flag_setters.h"
#include "coordinator/flags.h"

namespace somnus {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr absl::Duration kShortest = absl::Milliseconds(1);
constexpr absl::Duration kLongest = absl::Hours(24 * 100);
constexpr int64_t kMinBytes = 1 << 10;
constexpr int64_t kMaxBytes = int64_t{1} << 30;  // gRPC counts a message's bytes in 32 bits

FlagGroup ModelFlags(Flags* f) {
  return {
      "Model",
      {
          ModelFlag(f),
          Flag::Text("config", &f->config,
                     "text file that lists models, each with flags of its own (docs/models.textproto); the "
                     "command line goes before what it says of all models")
              .Shows("FILE"),
          Flag::Text("served-model-name", &f->served_model_name, "what clients call the model")
              .Shows("NAME")
              .Default("its directory or file name"),
          Flag::OneOf(
              "load-format", &f->load_format,
              {{"auto", v1::LOAD_FORMAT_AUTO}, {"dummy", v1::LOAD_FORMAT_DUMMY}},
              "the model's files, or random weights, for which config.json and the tokenizer are enough"),
          Flag::OneOf("dtype", &f->dtype,
                      {{"auto", v1::DTYPE_UNSPECIFIED},
                       {"bfloat16", v1::DTYPE_BFLOAT16},
                       {"float16", v1::DTYPE_FLOAT16},
                       {"half", v1::DTYPE_FLOAT16},
                       {"float32", v1::DTYPE_FLOAT32},
                       {"float", v1::DTYPE_FLOAT32}},
                      "auto (float32 for a float32 checkpoint, else bfloat16), bfloat16, float16 or float32: "
                      "type of weights "
                      "and activations")
              .Shows("TYPE"),
          Flag::Switch(
              "dequantize", &f->dequantize,
              "quantized weights become --dtype at load; with --no-dequantize a CPU computes with those of "
              "GGUF's Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 as they are stored"),
          Flag::Int("max-model-len", &f->max_model_len, 1, kMaxInt / 2,
                    "tokens of prompt and output together")
              .Default("the model's own"),
          Flag::OneOf("generation-config", &f->generation_config, {{"auto", true}, {"vllm", false}},
                      "sampling defaults: the model's, or neutral ones"),
          Flag::Int("seed", &f->seed, 0, std::numeric_limits<int64_t>::max(),
                    "accepted for scripts; a request without a seed gets a random one"),
      }};
}

FlagGroup ListenerFlags(Flags* f) {
  return {
      "Listeners",
      {
          Flag::Text("host", &f->host, "listen address of the OpenAI HTTP API and of gRPC for clients")
              .Shows("ADDR"),
          Flag::Int("port", &f->port, 0, 65535, "port of the OpenAI HTTP API; 0: any"),
          Flag::Text("admin-host", &f->admin_host, "listen address of the operators' HTTP API and gRPC")
              .Shows("ADDR"),
          Flag::Int("admin-port", &f->admin_port, 0, 65535, "port of the operators' HTTP API; 0: any"),
          Flag::Int("grpc-port", &f->grpc_port, 0, 65535, "port of gRPC for clients; 0: any"),
          Flag::Int("control-port", &f->control_port, 0, 65535, "port of gRPC for operators; 0: any"),
          Flag::Text("ssl-certfile", &f->tls.certificate,
                     "certificate in PEM: clients' HTTP and gRPC are by TLS alone; it is read again when it "
                     "changes")
              .Shows("PATH")
              .Alias("grpc-ssl-certfile"),
          Flag::Text("ssl-keyfile", &f->tls.key, "its private key").Shows("PATH").Alias("grpc-ssl-keyfile"),
          Flag::Text("ssl-ca-certs", &f->tls.authority,
                     "authorities in PEM: clients must have a certificate of one of them")
              .Shows("PATH")
              .Alias("grpc-ssl-ca-certs"),
          Flag::Text(
              "admin-ssl-certfile", &f->admin_tls.certificate,
              "certificate in PEM: operators' HTTP and gRPC are by TLS alone; it is read again when it "
              "changes")
              .Shows("PATH"),
          Flag::Text("admin-ssl-keyfile", &f->admin_tls.key, "its private key").Shows("PATH"),
          Flag::Text("api-key", &f->api_key, "clients must send it as a bearer token, over HTTP and gRPC")
              .Shows("KEY")
              .Default("SOMNUS_API_KEY, else none"),
          Flag::Text("admin-api-key", &f->admin_api_key,
                     "operators must send it as a bearer token, over HTTP and gRPC")
              .Shows("KEY")
              .Default("SOMNUS_ADMIN_API_KEY, else none")
              .Alias("control-api-key"),
          Flag::Int("output-threads", &f->output_threads, 0, 256,
                    "threads that turn tokens into text and JSON; 0: half of the CPUs, 2 to 8"),
          Flag::OneOf<std::string>(
              "log-level", &f->log_level,
              {{"debug", "debug"}, {"info", "info"}, {"warning", "warning"}, {"error", "error"}},
              "of the coordinator and of local workers"),
      }};
}

Flag NumaFlag(Flags* f) {
  return Flag::Custom(
      "numa", "auto|off|NODE", "auto", [f](const std::string& value) { return SetNuma(value, f); },
      "NUMA node whose CPUs and memory workers use; auto: each that of its GPU, or ranks on CPUs divide the "
      "nodes of their host; off: any, as the kernel chooses");
}

FlagGroup WorkerFlags(Flags* f) {
  const auto set_workers = [f](const std::string& value) { return SetWorkers(value, f); };
  return {
      "Workers",
      {
          Flag::Custom("workers", "local:N|remote:N|auto", "local:1", set_workers,
                       "start N workers here, or wait for N that are started elsewhere; auto: for as many as "
                       "the environment says, which names the port, too")
              .Alias("tensor-parallel-size"),
          Flag::Int("data-parallel-size", &f->data_parallel_size, 1, kMaxReplicas,
                    "replicas of the model behind one queue, each with as many workers as --workers says; "
                    "requests of one that is lost go on at another one"),
          Flag::Text("worker-binary", &f->worker_binary, "the worker's binary")
              .Shows("PATH")
              .Default("../worker/worker beside this one"),
          Flag::Text(
              "run-dir", &f->run_dir,
              "private directory of this coordinator, with which local workers outlive it when it is "
              "killed, or ended by SIGUSR1: the next one with the same directory adopts them, asleep or "
              "awake, with their weights")
              .Shows("DIR")
              .Default("none: they leave with it"),
          Flag::Text("cluster-host", &f->cluster_host, "listen address where remote workers register")
              .Shows("ADDR")
              .Default("127.0.0.1; with --workers=auto the coordinator's address where the environment gives "
                       "a numeric one, else 0.0.0.0"),
          Flag::Int("cluster-port", &f->cluster_port, 0, 65535, "and the port; 0: any")
              .Default(absl::StrCat(kClusterPort, ", or as the environment says")),
          Flag::OneOf(
              "device", &f->device,
              {{"auto", v1::DEVICE_TYPE_UNSPECIFIED},
               {"cpu", v1::DEVICE_TYPE_CPU},
               {"cuda", v1::DEVICE_TYPE_CUDA}},
              "where the model runs; auto: on GPUs where there are any, with a driver that serves them"),
          Flag::Ints("device-indices", &f->device_indices, 0, 1023,
                     "the GPU of each local worker, replica by replica")
              .Default("0,1,..."),
          NumaFlag(f),
          Flag::Int("threads-per-worker", &f->threads_per_worker, 0, 1024,
                    "compute threads of a worker; 0: the CPUs of its host / the workers there"),
          Flag::Number("memory-utilization", &f->memory_utilization, 0.01, 1,
                       "share of a GPU's memory for everything, or of a host's free memory for the KV cache")
              .Default("0.9 of a GPU, 0.5 of a host")
              .Alias("gpu-memory-utilization"),
          Flag::Switch("enforce-eager", &f->enforce_eager, "no CUDA graphs"),
          Flag::Ints("graph-sizes", &f->graph_sizes, 1, 4096, "batch sizes that get CUDA graphs")
              .Default("1,2,4,8,16,24,...,512"),
          Flag::Bytes("device-chunk-bytes", &f->device_chunk_bytes, 2 << 20, int64_t{1} << 40,
                      "size in which a GPU's memory is created and released"),
          Flag::Time(
              "max-tune-time", &f->max_tune_time, absl::ZeroDuration(), absl::Hours(1),
              "for measuring a GPU's ways of multiplying matrices at the start; 0: the library's choice")
              .Alias("max-tune-seconds"),
          Flag::Switch(
              "batch-invariant", &f->batch_invariant,
              "on GPUs: a request's tokens depend on no other request, bit for bit, at some speed, with "
              "all ranks on one host; on CPUs it is always so"),
      }};
}

FlagGroup CacheFlags(Flags* f) {
  const auto set_dtype = [f](const std::string& value) { return SetKvCacheDType(value, f); };
  return {
      "KV cache and scheduling",
      {
          Flag::Int("block-size", &f->block_size, 1, 1024, "tokens of a KV cache block"),
          Flag::Bytes("kv-cache-memory-bytes", &f->kv_cache_memory_bytes, 1, int64_t{1} << 60,
                      "KV cache of each worker")
              .Default("chosen by --memory-utilization")
              .Alias("kv-cache-memory"),
          Flag::Bytes(
              "min-kv-cache-memory-bytes", &f->min_kv_cache_memory_bytes, 0, int64_t{1} << 50,
              "of each worker, that the KV cache keeps when other models need memory; at least what one "
              "sequence of --max-model-len takes (--elastic-kv-cache)"),
          Flag::Custom("kv-cache-dtype", "TYPE", "auto", set_dtype,
                       "auto (the model's), bfloat16, float16, float32 or fp8 = fp8_e4m3"),
          Flag::Switch("enable-prefix-caching", &f->enable_prefix_caching,
                       "share the KV cache of equal prompt prefixes"),
          Flag::Int("max-num-seqs", &f->max_num_seqs, 1, 4096, "sequences that run at once"),
          Flag::Int("max-num-batched-tokens", &f->max_num_batched_tokens, 1, 1 << 20, "tokens of one step"),
          Flag::OneOf<std::string>(
              "scheduling-policy", &f->scheduling_policy, {{"fcfs", "fcfs"}, {"priority", "priority"}},
              "first come, first served, or by the requests' priority, lower first, which displaces "
              "running requests of a worse one when there is no room otherwise"),
          Flag::Int(
              "priority-aging-steps", &f->priority_aging_steps, 0, kMaxInt / 2,
              "under priority: waiting for that many steps improves a request's priority by one; 0: never"),
          Flag::Int("max-num-partial-prefills", &f->max_num_partial_prefills, 1, 4096,
                    "prompts at once that one step does not complete"),
          Flag::Int("max-long-partial-prefills", &f->max_long_partial_prefills, 1, 4096,
                    "long ones among them; prompts that are not long go ahead of long ones beyond"),
          Flag::Int(
              "long-prefill-token-threshold", &f->long_prefill_token_threshold, 0, kMaxInt / 2,
              "a prompt with more tokens to compute is long: while others need the step it gets no more of "
              "it; 0: half of --max-num-batched-tokens"),
          Flag::Switch("async-scheduling", &f->async_scheduling,
                       "schedule the next step before the reply to this one")
              .Alias("overlap"),
          Flag::Int("max-num-waiting", &f->max_num_waiting, 1, 1 << 20,
                    "requests that may queue; more are refused"),
          Flag::Int("max-num-waiting-tokens", &f->max_num_waiting_tokens, 1, int64_t{1} << 40,
                    "prompt tokens of queued requests together"),
          Flag::Bytes("max-waiting-bytes", &f->max_waiting_bytes, kMinBytes, int64_t{1} << 40,
                      "memory that queued requests hold together"),
      }};
}

FlagGroup SleepFlags(Flags* f) {
  const auto set_swap_space = [f](const std::string& value) { return SetSwapSpace(value, f); };
  return {
      "Sleep",
      {
          Flag::OneOf("backup", &f->backup,
                      {{"auto", v1::BACKUP_POLICY_UNSPECIFIED},
                       {"retain", v1::BACKUP_POLICY_RETAIN},
                       {"release", v1::BACKUP_POLICY_RELEASE},
                       {"file", v1::BACKUP_POLICY_FILE},
                       {"compress", v1::BACKUP_POLICY_COMPRESS}},
                      "where a level-1 sleep keeps the weights: in host memory, also after the wake-up "
                      "(auto on GPUs) or until then (auto on CPUs), in the checkpoint's own files or in one "
                      "of --spill-dir, or compressed in host memory, also after the wake-up"),
          Flag::Text(
              "spill-dir", &f->spill_dir,
              "directory of --backup=file on each worker's host, on a disk with room for the weights; the "
              "files have no names, and end with the workers. Without it the checkpoint is the backup")
              .Shows("DIR"),
          Flag::OneOf<std::string>(
              "sleep-arrivals", &f->sleep_arrivals,
              {{"queue", "queue"}, {"reject", "reject"}, {"wake", "wake"}},
              "a request that comes while the engine sleeps waits until it is woken, is refused (503, "
              "FAILED_PRECONDITION), or wakes it"),
          Flag::Time("idle-sleep-s", &f->idle_sleep, absl::ZeroDuration(), kLongest,
                     "an engine that has had no request for that long goes to sleep, and the next request "
                     "wakes it; 0: never")
              .Alias("idle-sleep"),
          Flag::Int("idle-sleep-level", &f->idle_sleep_level, kMinSleepLevel, kMaxSleepLevel,
                    "how deep it sleeps then"),
          Flag::Switch("keep-kv-on-sleep", &f->keep_kv_on_sleep,
                       "a level-1 sleep keeps what the KV cache holds, as far as --swap-space and "
                       "--host-memory-budget have room: open requests and cached prefixes are not computed "
                       "again")
              .Default("false; of several models: open requests alone"),
          Flag::Switch("wake-self-check", &f->wake_self_check,
                       "after a wake-up a fixed prompt is computed, and nothing is served unless its logits "
                       "are bit for bit what they were before the sleep (on CPUs, and with "
                       "--batch-invariant)"),
          Flag::Custom("swap-space", "BYTES", "4GiB", set_swap_space,
                       "host memory of each worker for KV blocks that a sleep keeps; taken when it is "
                       "needed; a bare number up to 1024 counts GiB"),
      }};
}

FlagGroup TimeFlags(Flags* f) {
  return {
      "Times and failures",
      {
          Flag::Time("step-timeout", &f->step_timeout, kShortest, kLongest,
                     "a step without a reply for that long is a failure, whatever steps take otherwise")
              .Alias("step-timeout-s"),
          Flag::Time("step-stall", &f->step_stall, kShortest, kLongest,
                     "while a step is under way for longer, /health says so")
              .Alias("step-stall-s"),
          Flag::Time("hang-timeout", &f->hang_timeout, absl::Seconds(1), kLongest,
                     "a worker without heartbeats for that long is lost; a step has at least that long, and "
                     "more where such steps take longer")
              .Alias("hang-timeout-s")
              .Alias("heartbeat-timeout")
              .Alias("heartbeat-timeout-s"),
          Flag::Time(
              "stale-weights-timeout", &f->stale_weights_timeout, absl::ZeroDuration(), kLongest,
              "how long requests wait for weights that a failed change or a lost worker has made stale, "
              "and that only a reload or an update brings; then they are refused; 0: as long as their "
              "clients do"),
          Flag::Int("max-recoveries-per-request", &f->max_recoveries_per_request, 0, 1000,
                    "a request that was in a step at that many failures of the workers, and got no further, "
                    "runs alone from then on, and ends with an error when they fail again"),
          Flag::Int("max-recoveries", &f->max_recoveries, 0, 1 << 20,
                    "recoveries of the workers within --recovery-window that led to no token; the next "
                    "failure is final"),
          Flag::Time("recovery-window", &f->recovery_window, kShortest, kLongest, "see --max-recoveries")
              .Alias("recovery-window-s"),
          Flag::Time("replica-retry-pause", &f->replica_retry_pause, absl::ZeroDuration(), absl::Hours(1),
                     "until a replica that has failed is tried again, while another one serves; it doubles "
                     "with every failure, up to 10m; 0: never"),
          Flag::Time("register-timeout", &f->register_timeout, kShortest, kLongest,
                     "how long to wait for local workers")
              .Alias("register-timeout-s"),
          Flag::Time("replacement-timeout", &f->replacement_timeout, kShortest, kLongest,
                     "how long to wait for another worker in the place of a lost one that runs elsewhere")
              .Alias("replacement-timeout-s"),
          Flag::Time("worker-grace", &f->worker_grace, absl::Milliseconds(1), kLongest,
                     "how long local workers wait for a coordinator that is gone, with --run-dir")
              .Alias("worker-grace-s"),
          Flag::Time("shutdown-timeout", &f->shutdown_timeout, absl::ZeroDuration(), kLongest,
                     "how long open requests may go on at the end"),
          Flag::Switch("stay-after-failure", &f->stay_after_failure,
                       "when the engine has failed: go on and refuse requests, instead of ending with exit "
                       "code 1"),
      }};
}

FlagGroup RequestLimitFlags(ApiLimits* l) {
  return {"Limits of a request",
          {
              Flag::Bytes("max-body-bytes", &l->max_body_bytes, kMinBytes, kMaxBytes, "of its HTTP body"),
              Flag::Bytes("max-grpc-message-bytes", &l->max_grpc_message_bytes, kMinBytes, kMaxBytes,
                          "of its gRPC message, which may take 25 times that once it is parsed"),
              Flag::Int("max-header-bytes", &l->max_header_bytes, 1024, 1 << 24, "of its headers together"),
              Flag::Int("max-header-fields", &l->max_header_fields, 8, 1 << 16, "headers"),
              Flag::Int("max-json-depth", &l->max_json_depth, 8, 1000, "of its JSON"),
              Flag::Int("max-json-values", &l->max_json_values, 1000, 1 << 28, "of its JSON"),
              Flag::Int("max-n", &l->max_n, 1, 1 << 16, "choices per prompt"),
              Flag::Int("max-prompts", &l->max_prompts, 1, 1 << 20, "prompts"),
              Flag::Int("max-sequences", &l->max_sequences, 1, 1 << 20, "prompts times choices"),
              Flag::Int("max-prompt-logprobs", &l->max_prompt_logprobs, 1, int64_t{1} << 40,
                        "prompt log-probabilities: its prompts' tokens times choices and alternatives"),
              Flag::Int("max-stop-strings", &l->max_stop_strings, 1, 1 << 12, "stop strings"),
              Flag::Int("max-stop-string-bytes", &l->max_stop_string_bytes, 1, 1 << 16,
                        "bytes of one stop string"),
              Flag::Int("max-stop-token-ids", &l->max_stop_token_ids, 1, 1 << 20, "stop_token_ids"),
              Flag::Int("max-logit-bias", &l->max_logit_bias, 1, 1 << 20, "entries of logit_bias"),
              Flag::Int("max-allowed-token-ids", &l->max_allowed_token_ids, 1, 1 << 20, "allowed_token_ids"),
              Flag::Int("max-bad-words", &l->max_bad_words, 1, 1 << 12, "bad words, both spellings counted"),
              Flag::Int("max-bad-word-tokens", &l->max_bad_word_tokens, 1, 1 << 12, "tokens of one bad word"),
          }};
}

FlagGroup ConnectionLimitFlags(ApiLimits* l) {
  const auto time = [](const char* name, absl::Duration* value, const char* help) {
    return Flag::Time(name, value, kShortest, kLongest, help).Alias(absl::StrCat(name, "-s"));
  };
  return {
      "Limits of connections",
      {
          Flag::Int("max-connections", &l->max_connections, 1, 1 << 20,
                    "on each HTTP port; above, the one that has been idle for longest is closed"),
          Flag::Int("max-open-calls", &l->max_open_calls, 1, 1 << 16, "gRPC streams at once"),
          Flag::Bytes("max-buffered-body-bytes", &l->max_buffered_body_bytes, kMinBytes, int64_t{1} << 40,
                      "of all requests that are being read"),
          Flag::Bytes("max-response-bytes", &l->max_response_bytes, kMinBytes, int64_t{1} << 40,
                      "of a response that waits for its end, or of a stream between two events"),
          Flag::Bytes("max-buffered-response-bytes", &l->max_buffered_response_bytes, kMinBytes,
                      int64_t{1} << 40, "of all such responses together"),
          Flag::Bytes("max-stream-backlog-bytes", &l->max_stream_backlog_bytes, kMinBytes, kMaxBytes,
                      "output that a client has not read; its request ends above"),
          Flag::Bytes("max-queued-output-bytes", &l->max_queued_output_bytes, kMinBytes, kMaxBytes,
                      "output of one HTTP request that is not text yet; the request ends above"),
          time("header-timeout", &l->header_timeout,
               "from a request's first byte to the end of its headers; from a connection to the end of its "
               "TLS handshake"),
          time("body-timeout", &l->body_timeout, "from there to the end of its body"),
          time("idle-timeout", &l->idle_timeout, "between two requests of a connection"),
          time("write-timeout", &l->write_timeout, "without the client taking a byte"),
          time("weight-update-timeout", &l->weight_update_timeout,
               "without a message of a client that updates weights; then its update is given up"),
          Flag::Time("sse-keepalive", &l->sse_keepalive, absl::ZeroDuration(), kLongest,
                     "a stream without an event for that long gets a comment, for proxies; 0: never")
              .Alias("sse-keepalive-s"),
          time("linger-timeout", &l->linger_timeout, "how long the rest of a refused request is still read"),
          time("linger-silence", &l->linger_silence, "until its client has been silent for that long"),
          Flag::Bytes("max-linger-bytes", &l->max_linger_bytes, kMinBytes, kMaxBytes, "and how much of it"),
      }};
}

}  // namespace

FlagTable CoordinatorFlags(Flags* flags) {
  FlagTable table;
  table.program = "coordinator";
  table.usage = "coordinator [--model] PATH [flags]";
  table.about = "Serves a language model: HTTP (OpenAI) and gRPC.";
  table.max_positional = 1;
  table.groups = {ModelFlags(flags),
                  ListenerFlags(flags),
                  WorkerFlags(flags),
                  ClusterTrustFlags(&flags->trust),
                  CacheFlags(flags),
                  SleepFlags(flags),
                  SeveralModelsFlags(flags),
                  TimeFlags(flags),
                  RequestLimitFlags(&flags->limits),
                  ConnectionLimitFlags(&flags->limits)};
  return table;
}

}  // namespace somnus
