// The table of the coordinator's flags.
#include "coordinator/flags/flag_specs.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "coordinator/flags/flag_setters.h"

namespace somnus {
namespace {

FlagGroup ModelFlags(Flags* f) {
  return {
      "Model",
      {
          ModelFlag(f),
          Flag::Text("config", &f->config,
                     "text file that lists models, each with flags of its own (docs/models.textproto); the "
                     "command line goes before what it says of all models")
              .Shows("FILE"),
          Flag::Custom(
              "served-model-name", "NAME [NAME...]", "its directory or file name",
              [f](const std::string& names) { return SetServedNames(names, f); },
              "what clients call the model; responses have the first name, and the others are as good in "
              "requests")
              .TakesMore(),
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
              "quantized weights of a GGUF file or a checkpoint become --dtype at load, for exact 16-bit "
              "arithmetic; without it they are computed as they are stored where the device computes with "
              "their type, as a CPU does")
              .Default("false; true with --quantization=int8, int4 or fp8, which quantize anew"),
          Flag::OneOf("quantization", &f->quantization, QuantizationNames(),
                      "int8, int4, fp8: a CPU quantizes the matrices of the layers at load, where they would "
                      "become --dtype, and computes with those of an fp8 checkpoint as they are stored; awq, "
                      "gptq (also awq_marlin, gptq_marlin), compressed-tensors, gguf: the checkpoint has to "
                      "be so quantized, and nothing else changes")
              .Shows("METHOD"),
          Flag::Int("max-model-len", &f->max_model_len, 1, kMaxIntFlag / 2,
                    "tokens of prompt and output together")
              .Default("the model's own"),
          Flag::OneOf("generation-config", &f->generation_config, {{"auto", true}, {"vllm", false}},
                      "sampling defaults: the model's, or neutral ones"),
          Flag::Int("seed", &f->seed, 0, std::numeric_limits<int64_t>::max(),
                    "accepted for scripts; a request without a seed gets a random one"),
      }};
}

// The flag for the port of a listener beside the HTTP API.
Flag PortFlag(const std::string& name, int32_t* port, Flags* f, std::string help) {
  Flag flag = Flag::Int(name, port, 0, 65535, std::move(help));
  flag.set = [name, f, set = std::move(flag.set)](const std::string& text) {
    f->given_ports.insert(name);
    return set(text);
  };
  return flag;
}

Flag KeyFlag(const char* name, ApiKeys* keys, const char* help) {
  return Flag::Custom(
      name, "KEY", "", [keys](const std::string& key) { return keys->Add("", key); }, help);
}

FlagGroup ListenerFlags(Flags* f) {
  return {
      "Listeners",
      {
          Flag::Text("host", &f->host, "listen address of the OpenAI HTTP API and of gRPC for clients")
              .Shows("ADDR"),
          Flag::Int("port", &f->port, 0, 65535,
                    "port of the OpenAI HTTP API; those of the next three that are not given have the ports "
                    "after it, or any, as this one, where it is 0"),
          Flag::Text("admin-host", &f->admin_host, "listen address of the operators' HTTP API and gRPC")
              .Shows("ADDR"),
          PortFlag("admin-port", &f->admin_port, f, "port of the operators' HTTP API; 0: any"),
          PortFlag("grpc-port", &f->grpc_port, f, "port of gRPC for clients; 0: any"),
          PortFlag("control-port", &f->control_port, f, "port of gRPC for operators; 0: any"),
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
          KeyFlag("api-key", &f->api_keys,
                  "clients must send it as a bearer token, over HTTP and gRPC; may be repeated, and each key "
                  "is as "
                  "good")
              .Default("SOMNUS_API_KEY, else none"),
          Flag::Text("api-key-file", &f->api_key_file,
                     "further keys of clients: lines name:key, in a file that others cannot read")
              .Shows("PATH"),
          KeyFlag("admin-api-key", &f->admin_api_keys,
                  "operators must send it as a bearer token, over HTTP and gRPC; may be repeated")
              .Default("SOMNUS_ADMIN_API_KEY, else none")
              .Alias("control-api-key"),
          Flag::Text("admin-api-key-file", &f->admin_api_key_file,
                     "further keys of operators, in the same form; the log and the status name the operator "
                     "of a call")
              .Shows("PATH"),
          Flag::Switch("server-dev-mode", &f->server_dev_mode,
                       "operators' HTTP routes are on --port, too, for scripts that know one port; where "
                       "operators have no key, clients' keys are theirs, too")
              .Default("false; true where VLLM_SERVER_DEV_MODE is 1"),
          Flag::Custom(
              "root-path", "PREFIX", "", [f](const std::string& path) { return SetRootPath(path, f); },
              "as /llm: paths of both HTTP ports may begin with it, where a proxy in front serves this "
              "server "
              "under that path and does not take it off"),
          Flag::Switch(
              "enable-tokenizer-info-endpoint", &f->tokenizer_info,
              "clients may read the tokenizer's settings and the chat template (GET /tokenizer_info)"),
          Flag::Switch("trust-gateways", &f->trust_gateways,
                       "gateways are the only clients of --grpc-port: by VllmEngine they may read KV events, "
                       "which have the tokens of prompts (--max-kv-events), and empty the prefix cache"),
          Flag::Int("output-threads", &f->output_threads, 0, 256,
                    "threads that turn tokens into text and JSON; 0: half of the CPUs, 2 to 8"),
          Flag::Int("structured-outputs-mask-threads", &f->engine.scheduler.mask_threads, 0, 256,
                    "threads that compute masks of tokens where a step has many; 0: a quarter of the CPUs, "
                    "1 to 8"),
          Flag::OneOf<std::string>(
              "log-level", &f->log_level,
              {{"debug", "debug"}, {"info", "info"}, {"warning", "warning"}, {"error", "error"}},
              "of the coordinator and of local workers"),
          Flag::Bytes("log-queue-bytes", &f->log_queue_bytes, kMinBytesFlag, kMaxBytesFlag,
                      "of lines that wait for a slow reader of the log, in the coordinator and in each local "
                      "worker; lines beyond are dropped and counted"),
          Flag::Int("max-trace-steps", &f->trace.max_steps, 1, 1 << 17,
                    "steps that GET /trace remembers of each model; each takes about 200 bytes"),
          Flag::Int("max-trace-spans", &f->trace.max_spans, 1, 1 << 17,
                    "sleeps, wake-ups, recoveries and other such events that it remembers"),
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
          Flag::Custom(
              "workers", "local:N|remote:N|auto", "local:1", set_workers,
              "start N workers here for each stage of a pipeline, or wait for N that are started "
              "elsewhere; auto: for as many in all as the environment says, which names the port, too")
              .Alias("tensor-parallel-size"),
          Flag::Int("pipeline-parallel-size", &f->pipeline_parallel_size, 1, kMaxWorkers,
                    "stages that divide the model's layers among them, each with the workers that --workers "
                    "says; as many steps as stages are computed at once"),
          Flag::Ints("pipeline-layer-partition", &f->pipeline_layer_partition, 1, 1 << 16,
                     "the number of layers of each stage")
              .Default("equal numbers, those left over for the stages before the last"),
          Flag::Int("data-parallel-size", &f->data_parallel_size, 1, kMaxReplicas,
                    "replicas of the model behind one queue, each with workers of its own; "
                    "requests of one that is lost go on at another one"),
          Flag::Switch("enable-expert-parallel", &f->expert_parallel,
                       "the workers of a model with experts divide the experts among themselves, and not the "
                       "width of each"),
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
                    "compute threads of a worker; 0: the cores of its host / the workers there"),
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
              "batch-invariant", &f->engine.batch_invariant,
              "on GPUs: a request's tokens depend on no other request, bit for bit, at some speed, with "
              "all ranks on one host; on CPUs it is always so"),
      }};
}

}  // namespace

FlagTable CoordinatorFlags(Flags* flags) {
  FlagTable table;
  table.program = "coordinator";
  table.usage = "coordinator [--model] PATH [flags]";
  table.about = "Serves a language model: HTTP (OpenAI) and gRPC.";
  table.max_positional = 1;
  table.common = {"model",
                  "config",
                  "served-model-name",
                  "dtype",
                  "quantization",
                  "max-model-len",
                  "host",
                  "port",
                  "ssl-certfile",
                  "ssl-keyfile",
                  "api-key",
                  "admin-api-key",
                  "workers",
                  "data-parallel-size",
                  "run-dir",
                  "device",
                  "memory-utilization",
                  "kv-cache-memory-bytes",
                  "kv-cache-dtype",
                  "max-num-seqs",
                  "max-num-batched-tokens",
                  "num-speculative-tokens",
                  "sleep-arrivals",
                  "idle-sleep-s",
                  "device-memory-budget"};
  table.groups = {ModelFlags(flags),
                  AnswerFlags(&flags->chat),
                  SchemaFlags(&flags->chat.gate),
                  EmbeddingFlags(&flags->pooling),
                  ListenerFlags(flags),
                  BrowserFlags(flags),
                  ObservationFlags(flags),
                  WorkerFlags(flags),
                  ClusterTrustFlags(&flags->trust),
                  CacheFlags(flags),
                  SpeculationFlags(flags),
                  AdapterFlags(&flags->lora),
                  SleepFlags(flags),
                  SeveralModelsFlags(flags),
                  TimeFlags(flags),
                  RequestLimitFlags(&flags->limits),
                  ConnectionLimitFlags(&flags->limits)};
  return table;
}

}  // namespace somnus
