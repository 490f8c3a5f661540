#pragma once
// The coordinator's command line. Names are vLLM's where vLLM has one; hyphens and underscores are the same.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/api/api_limits.h"
#include "proto/model.pb.h"

namespace somnus {

struct Flags {
  std::string model;              // HF directory or GGUF file
  std::string served_model_name;  // empty: the model's directory or file name
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::string admin_host = "127.0.0.1";
  int32_t admin_port = 8001;
  int32_t grpc_port = 50051;
  std::string api_key;
  int32_t output_threads = 0;  // 0: chosen by the CPUs
  // Workers.
  bool local_workers = true;
  int32_t num_workers = 1;
  int32_t threads_per_worker = 0;          // 0: the CPUs divided by the workers
  std::string worker_binary;               // empty: beside this binary
  std::string cluster_host = "127.0.0.1";  // where remote workers register
  int32_t cluster_port = 50052;
  v1::DeviceType device = v1::DEVICE_TYPE_UNSPECIFIED;
  std::vector<int32_t> device_indices;  // the GPU of each local rank; empty: rank i's is GPU i
  double memory_utilization = 0;        // 0: the worker's default
  bool enforce_eager = false;
  std::vector<int32_t> graph_sizes;  // empty: the worker's default
  bool batch_invariant = false;
  double max_tune_seconds = -1;  // -1: the worker's default
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  bool load_dummy = false;  // random weights
  // Engine.
  int32_t max_model_len = 0;  // 0: the model's own
  int32_t max_num_seqs = 128;
  int32_t max_num_batched_tokens = 512;
  int32_t block_size = 16;
  int64_t kv_cache_memory = 0;                       // bytes per worker; 0: chosen
  v1::DType kv_cache_dtype = v1::DTYPE_UNSPECIFIED;  // unspecified: the model's
  std::string kv_cache_dtype_name = "auto";          // as it was given
  bool enable_prefix_caching = true;
  int32_t overlap = 1;
  std::string scheduling_policy = "fcfs";
  int32_t max_num_partial_prefills = 2;
  int32_t max_long_partial_prefills = 1;
  int32_t long_prefill_token_threshold = 0;  // 0: half of max_num_batched_tokens
  int32_t priority_aging_steps = 512;        // 0: no aging
  int32_t max_num_waiting = 1024;
  int64_t max_num_waiting_tokens = 4 << 20;
  bool generation_config = true;
  uint64_t seed = 0;
  // Times, in seconds.
  double step_timeout_s = 300;
  double step_stall_s = 60;
  double heartbeat_timeout_s = 30;
  double register_timeout_s = 60;
  double shutdown_timeout_s = 10;
  bool stay_after_failure = false;  // a failed engine does not end the process
  std::string log_level = "info";
  ApiLimits limits;

  bool help = false;
  bool version = false;
};

// `args` without the program's name. Accepts --name value, --name=value, --name (true) and --no-name for
// booleans, and the model as the one positional argument. InvalidArgument names the flag and the reason.
absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& args);

std::string FlagsHelp();

}  // namespace somnus
