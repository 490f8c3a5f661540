#pragma once
// The coordinator's command line. A flag that vLLM has, too, has vLLM's name.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/discovery.h"
#include "base/flags.h"
#include "base/tls_files.h"
#include "coordinator/engine/auto_sleep_options.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/flags/chat_flags.h"
#include "coordinator/flags/lora_flags.h"
#include "coordinator/flags/pooling_flags.h"
#include "coordinator/flags/quantization.h"
#include "coordinator/http/api_keys.h"
#include "coordinator/http/api_limits.h"
#include "coordinator/http/cors_options.h"
#include "coordinator/metrics/step_trace.h"
#include "coordinator/several_models/shared_devices_options.h"
#include "coordinator/traces/trace_options.h"
#include "proto/cluster_trust.h"
#include "proto/model.pb.h"

namespace somnus {

// The most workers of a group, and the most groups.
inline constexpr int32_t kMaxWorkers = 64;
inline constexpr int32_t kMaxReplicas = 64;

inline constexpr size_t kMaxModels = 1024;
inline constexpr size_t kMaxServedNames = 64;  // of one model

struct ModelPath {
  std::string name;  // empty: the model's own
  std::string path;
  std::vector<std::string> aliases;  // further names, under which clients may ask for the model
  std::vector<std::string> flags;  // of this model alone, as on a command line; the table has taken the flags
  std::string source;              // of `flags`, for error messages: "--config: models.textproto:7: "
};

struct Flags {
  std::string model;              // HF directory or GGUF file; of several models OfEachModel says which
  std::vector<ModelPath> models;  // after FinishFlags: empty unless there are several
  std::string config;             // file with models and flags (serve_config.h); empty: none
  std::string served_model_name;  // empty: the model's directory or file name
  std::vector<std::string> model_aliases;  // further names, under which clients may ask for the model
  v1::LoadFormat load_format = v1::LOAD_FORMAT_AUTO;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  bool expert_parallel = false;
  std::optional<bool> dequantize;  // not given: as --quantization says (DequantizesAtLoad)
  Quantization quantization = Quantization::kNone;
  int32_t max_model_len = 0;      // 0: the model's own
  bool generation_config = true;  // sampling defaults are the model's
  uint64_t seed = 0;
  ChatFlags chat;
  PoolingFlags pooling;
  // Listeners.
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::string admin_host = "127.0.0.1";
  int32_t admin_port = 8001;
  int32_t grpc_port = 50051;
  int32_t control_port = 50054;       // on admin_host
  std::set<std::string> given_ports;  // flags given for the last three; the others follow `port`
  TlsFiles tls;                       // of clients' HTTP and gRPC; empty: no TLS
  TlsFiles admin_tls;                 // of operators' HTTP and gRPC, without an authority; empty: no TLS
  ApiKeys api_keys;                   // of clients; empty: no key is required
  ApiKeys admin_api_keys;             // of operators; empty: no key is required
  std::string api_key_file, admin_api_key_file;  // further keys, which FinishFlags reads
  std::string root_path;                         // "/llm", without a '/' at the end; empty: none
  bool tokenizer_info = false;                   // clients may ask /tokenizer_info
  bool trust_gateways = false;                   // clients' gRPC has gateways alone as clients
  bool server_dev_mode = false;                  // operators' HTTP routes are on `port`, too
  CorsOptions cors;                              // of clients' HTTP
  std::vector<std::string> admin_allowed_hosts;  // of ApiServerOptions
  bool console = true;                           // pages for browsers
  bool request_id_headers = false;
  int32_t output_threads = 0;  // 0: chosen from the number of CPUs
  TraceLimits trace;
  // Observation.
  std::string access_log;           // file for a JSON line of each request; "-": stdout; empty: there is none
  int32_t request_history = 1000;   // ended requests of each model that GET /requests remembers
  int32_t max_request_events = 64;  // events kept of each request, besides the end
  bool expert_load_metrics = false;
  bool kv_cache_metrics = false;
  double kv_cache_metrics_sample = 0.01;  // of the blocks
  TraceExportOptions traces;
  // The options of each replica's engine loop, without the values that depend on the model and on the size of
  // the KV cache: those are known once the workers have loaded (served_engine.cc). A stale_weights_timeout of
  // zero means "as long as clients wait".
  EngineOptions engine;
  // Workers.
  bool local_workers = true;
  bool discover_workers = false;                  // remote workers, as the environment says
  int32_t world_size = 1;                         // of each replica; until CountWorkers of one stage
  int32_t pipeline_parallel_size = 1;             // stages of each replica; divides world_size
  std::vector<int32_t> pipeline_layer_partition;  // layers of each stage; empty: the workers divide them
  int32_t data_parallel_size = 1;                 // replicas
  int32_t replica = 0;                            // the replica that these flags are for (OfReplica)
  std::string worker_binary;                      // empty: beside this binary
  std::string run_dir;                            // empty: local workers leave with the coordinator
  std::string cluster_host;                       // where remote workers register; empty until FinishFlags
  int32_t cluster_port = -1;                      // where remote workers register; -1 until FinishFlags
  ClusterTrustOptions trust;                      // how workers and the coordinator know each other
  std::string discovered;  // the answer of the environment, for the log; empty: nothing was asked
  // How workers run. LoadModel carries all of these flags to the workers, except device_indices.
  v1::DeviceType device = v1::DEVICE_TYPE_UNSPECIFIED;
  std::string numa;                // of workers: "off" or a node's number; empty: each chooses
  int32_t threads_per_worker = 0;  // 0: the CPUs of a host divided by its workers
  double memory_utilization = 0;   // 0: the device's default
  bool enforce_eager = false;
  std::vector<int32_t> graph_sizes;  // empty: the worker's default
  absl::Duration max_tune_time = absl::Seconds(5);
  int64_t device_chunk_bytes = int64_t{1} << 30;
  bool enable_sleep_mode = true;                            // false is refused
  v1::BackupPolicy backup = v1::BACKUP_POLICY_UNSPECIFIED;  // unspecified: the device's default
  std::string spill_dir;                                    // on each worker's host
  std::vector<int32_t> device_indices;  // the GPU of each local worker (LocalIndex); empty: i's is GPU i
  // KV cache.
  int64_t kv_cache_memory_bytes = 0;      // per worker; 0: chosen by memory_utilization
  int64_t min_kv_cache_memory_bytes = 0;  // per worker, kept by an elastic cache; 0: one longest sequence
  v1::DType kv_cache_dtype = v1::DTYPE_UNSPECIFIED;  // unspecified: the model's
  std::string kv_cache_dtype_name = "auto";          // as the flag was given
  int32_t max_kv_events = 0;                         // blocks; 0: there are none
  // Scheduling.
  std::string fairness = "none";
  int32_t max_fair_users = 4096;
  double max_user_queue_share = 0.5;
  // Speculative decoding.
  std::string speculative = "ngram";
  std::string draft_model;  // of --speculative=draft
  bool has_draft_model() const {
    return speculative == "draft" && engine.scheduler.speculation.num_speculative_tokens > 0;
  }
  int32_t prompt_lookup_min = 2;
  int32_t prompt_lookup_max = 5;
  LoraFlags lora;
  // Sleep.
  AutoSleepOptions auto_sleep;
  std::optional<bool> keep_kv_on_sleep;         // not set: true where several models are served
  int64_t swap_space_bytes = int64_t{4} << 30;  // host memory of each worker for KV blocks
  int64_t swap_space_ahead_bytes = int64_t{1}
                                   << 30;  // the part of swap_space_bytes that a worker on a GPU has ready
  // Several models.
  SharedDevicesOptions devices;       // without the budgets, `arrivals` and `retry`
  int64_t device_memory_budget = 0;   // 0: no bound
  int64_t host_memory_budget = 0;     // 0: no bound
  double prefetch_cpu_share = 0.125;  // of one processor
  bool elastic_kv_cache = true;
  std::set<std::string> pinned_models;
  std::map<std::string, int32_t> model_priorities;
  // By a model's name; the empty name stands for all models without a target of their own.
  std::map<std::string, absl::Duration> model_ttft_targets;
  std::map<std::string, absl::Duration> model_tpot_targets;
  // Times.
  absl::Duration liveness_timeout = absl::Minutes(1);      // zero: loops are not watched
  absl::Duration replica_retry_pause = absl::Seconds(30);  // zero: a failed replica is not tried again
  absl::Duration register_timeout = absl::Minutes(1);
  absl::Duration replacement_timeout = absl::Minutes(10);
  absl::Duration worker_grace = absl::Minutes(5);  // of local workers, with run_dir
  absl::Duration shutdown_timeout = absl::Seconds(10);
  bool stay_after_failure = false;  // a failed engine does not end the process
  std::string log_level = "info";
  int64_t log_queue_bytes = 1 << 20;
  ApiLimits limits;
};

// The flags of one replica's group of workers. Remote workers register at a port of the replica's own:
// --cluster-port and the ports after that. Where there are several replicas, each has a run directory within
// --run-dir.
Flags OfReplica(const Flags& flags, int32_t replica);
// The place of a replica's rank among all local workers, replica by replica. The place decides CPUs and GPU.
inline int32_t LocalIndex(const Flags& flags, int32_t rank) {
  return flags.replica * flags.world_size + rank;
}
// The flags of each model, in the order of the models: `model` is the path, and served_model_name the name.
// Where there are several models, each has a run directory within --run-dir.
std::vector<Flags> OfEachModel(const Flags& flags);
// The target of the model with this name; zero: the model has none.
absl::Duration TargetOf(const std::map<std::string, absl::Duration>& targets, const std::string& name);
// The models' names in flags about single models, each with the flag.
std::vector<std::pair<std::string, std::string>> FlagsWithModelNames(const Flags& flags);
// Whether a sleep of level 1 keeps any KV blocks. `flags`: of one model; where several models are served, the
// blocks of open requests are kept unless the flag says otherwise.
inline bool KeepsKvOnSleep(const Flags& flags) {
  return flags.keep_kv_on_sleep.value_or(!flags.models.empty());
}
// Whether preempted sequences may be swapped out. With a budget for the host's memory sequences are not
// swapped out: a swap takes host memory between two steps, and nobody could make room for the swap.
inline bool MaySwap(const Flags& flags) {
  return flags.engine.scheduler.preemption != PreemptionMode::kRecompute && flags.swap_space_bytes > 0 &&
         flags.host_memory_budget == 0;
}
// Whether the prefix cache goes on in host memory, for which the same holds.
inline bool CachesOnHost(const Flags& flags) {
  return flags.engine.scheduler.host_prefix_caching != HostPrefixCaching::kOff &&
         flags.engine.scheduler.blocks.enable_prefix_caching && flags.swap_space_bytes > 0 &&
         flags.host_memory_budget == 0;
}
// For log lines: "replica 1: ", or nothing where there is one replica.
std::string ReplicaPrefix(const Flags& flags);

// To be called once for each model's flags, after parsing: world_size counts the workers of all stages.
void CountWorkers(Flags* flags);
// InvalidArgument names the flag: every stage has a layer, and all layers of the model have a stage.
absl::Status CheckStages(const Flags& flags, int32_t num_layers);

// The part of the table in model_flags.cc: --model, and flags about several models.
Flag ModelFlag(Flags* flags);
FlagGroup SeveralModelsFlags(Flags* flags);
// The part of FinishFlags that is about models: names of the models folder become paths.
absl::Status FinishModels(const Environment& environment, Flags* flags);

// Returns the table of all flags (flag_specs.h). Parsing writes into `flags`, which is borrowed.
FlagTable CoordinatorFlags(Flags* flags);

// To be called after the table was parsed, and AddServeConfig: takes the model from the positional argument,
// asks `environment` where --workers=auto is given, and checks flags against each other. InvalidArgument
// names the flag or the variable.
absl::Status FinishFlags(const std::vector<std::string>& positional, const Environment& environment,
                         Flags* flags);

// Parses and finishes `args`, which do not include the program's name. InvalidArgument names the flag.
absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& args, const Environment& environment = {});

}  // namespace somnus
