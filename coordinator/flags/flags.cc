#include "coordinator/flags/flags.h"

#include <cstddef>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/flags/serve_config.h"
#include "coordinator/traces/trace_environment.h"

namespace somnus {
namespace {

// The command line is not private: `ps` shows the flags.
constexpr char kKeyVariable[] = "SOMNUS_API_KEY";
constexpr char kAdminKeyVariable[] = "SOMNUS_ADMIN_API_KEY";
// Scripts that are written for vLLM set this variable to 1.
constexpr char kDevModeVariable[] = "VLLM_SERVER_DEV_MODE";

// Adds the keys of the file that `flag` has named, and, where there are no keys at all, the key of the
// environment.
absl::Status FillKeys(const char* flag, const std::string& file, const Environment& environment,
                      const char* variable, ApiKeys* keys) {
  if (!file.empty()) {
    if (const absl::Status status = keys->AddFile(file); !status.ok())
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
  }
  const auto found = environment.find(variable);
  if (!keys->empty() || found == environment.end() || found->second.empty()) return absl::OkStatus();
  return keys->Add("", found->second);
}

// Operators' routes on clients' port: as the flag says, or the environment. Where operators have no key
// there, clients' keys are theirs, too, so that no port that has a key has a route without.
void SetDevMode(const Environment& environment, Flags* flags) {
  const auto found = environment.find(kDevModeVariable);
  if (found != environment.end() && found->second == "1") flags->server_dev_mode = true;
  if (flags->server_dev_mode && flags->admin_api_keys.empty()) flags->admin_api_keys = flags->api_keys;
}

// The ports that are not given follow --port: each takes the next number that no flag has given and at which
// no remote workers register, or any port where --port says any. At the default of --port they keep defaults
// of their own.
void FollowPort(Flags* flags) {
  if (flags->port == Flags().port) return;
  const std::pair<const char*, int32_t Flags::*> followers[] = {{"admin-port", &Flags::admin_port},
                                                                {"grpc-port", &Flags::grpc_port},
                                                                {"control-port", &Flags::control_port}};
  std::set<int32_t> taken = {flags->port};
  for (int32_t i = 0; !flags->local_workers && i < flags->data_parallel_size; ++i)
    taken.insert(OfReplica(*flags, i).cluster_port);
  for (const auto& [name, port] : followers) {
    if (flags->given_ports.count(name) > 0) taken.insert(flags->*port);
  }
  for (const auto& [name, port] : followers) {
    if (flags->given_ports.count(name) > 0) continue;
    int32_t next = flags->port;
    while (flags->port != 0 && taken.count(next) > 0) ++next;
    taken.insert(next);
    flags->*port = next;
  }
}

// Listeners on the same address need different ports. Port 0 is the system's choice.
absl::Status CheckPorts(const Flags& flags) {
  struct Listener {
    const char* flag;
    const std::string& host;
    int32_t port;
  };
  std::vector<Listener> listeners = {{"--port", flags.host, flags.port},
                                     {"--admin-port", flags.admin_host, flags.admin_port},
                                     {"--grpc-port", flags.host, flags.grpc_port},
                                     {"--control-port", flags.admin_host, flags.control_port}};
  for (int32_t i = 0; !flags.local_workers && i < flags.data_parallel_size; ++i) {
    const int32_t port = OfReplica(flags, i).cluster_port;
    if (port > 65535)
      return absl::InvalidArgumentError(absl::StrCat("--cluster-port: replica ", i, " has no port"));
    listeners.push_back({"--cluster-port", flags.cluster_host, port});
  }
  for (size_t i = 0; i < listeners.size(); ++i) {
    if (listeners[i].port > 65535)
      return absl::InvalidArgumentError(
          absl::StrCat("--port: ", flags.port, " leaves no number for ", listeners[i].flag));
    for (size_t j = 0; j < i; ++j) {
      if (listeners[i].port == 0 || listeners[i].port != listeners[j].port) continue;
      if (listeners[i].host != listeners[j].host) continue;
      return absl::InvalidArgumentError(absl::StrCat(listeners[i].flag, ": ", listeners[i].port,
                                                     " is the port of ", listeners[j].flag, " already"));
    }
  }
  return absl::OkStatus();
}

// --workers=auto: as many workers as the environment says, which will dial the address that the environment
// says.
absl::Status DiscoverWorkers(const Environment& environment, Flags* flags) {
  ASSIGN_OR_RETURN(Discovery found, Discover(environment));
  // The rank, the device and the host concern a worker alone.
  found.rank.reset();
  found.device_index.reset();
  found.host.reset();
  if (!found.world_size.has_value()) {
    const std::string known = DescribeDiscovery(found);
    return absl::InvalidArgumentError(
        absl::StrCat("--workers: auto: the environment tells no number of workers; set SOMNUS_WORLD_SIZE",
                     known.empty() ? "" : "; it tells ", known));
  }
  if (found.world_size->value > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat(found.world_size->variable, ": ", found.world_size->value,
                                                   " is more than ", kMaxWorkers, " workers"));
  }
  flags->local_workers = false;
  flags->world_size = found.world_size->value;
  if (flags->cluster_port >= 0 && !flags->cluster_host.empty()) found.coordinator.reset();
  if (found.coordinator.has_value()) {
    const CoordinatorAddress& address = found.coordinator->value;
    if (address.port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(found.coordinator->variable, ": --workers=auto needs host:port"));
    }
    if (flags->cluster_port < 0) flags->cluster_port = address.port;
    if (flags->cluster_host.empty()) flags->cluster_host = address.ListenHost();
  }
  flags->discovered = DescribeDiscovery(found);
  return absl::OkStatus();
}

// Checks for flags that do not go together with several replicas.
absl::Status CheckReplicas(const Flags& flags) {
  if (flags.data_parallel_size == 1) return absl::OkStatus();
  if (flags.discover_workers) {
    return absl::InvalidArgumentError(
        "--data-parallel-size: needs --workers=local:N or remote:N, N workers for each replica; auto knows "
        "one group");
  }
  return absl::OkStatus();
}

absl::Status CheckSpeculation(const Flags& flags) {
  if (flags.prompt_lookup_min > flags.prompt_lookup_max) {
    return absl::InvalidArgumentError(absl::StrCat("--prompt-lookup-min: ", flags.prompt_lookup_min,
                                                   " is more than --prompt-lookup-max (",
                                                   flags.prompt_lookup_max, ")"));
  }
  if (flags.speculative != "draft") {
    if (flags.draft_model.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--draft-model: is for --speculative=draft");
  }
  if (flags.draft_model.empty())
    return absl::InvalidArgumentError("--speculative: draft needs --draft-model");
  if (flags.engine.scheduler.speculation.num_speculative_tokens > 0) return absl::OkStatus();
  return absl::InvalidArgumentError("--speculative: draft needs --num-speculative-tokens");
}

absl::Status CheckPipeline(const Flags& flags) {
  const int32_t num_stages = flags.pipeline_parallel_size;
  if (!flags.pipeline_layer_partition.empty() &&
      flags.pipeline_layer_partition.size() != static_cast<size_t>(num_stages)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--pipeline-layer-partition: ", flags.pipeline_layer_partition.size(), " numbers for ",
                     num_stages, " stages (--pipeline-parallel-size)"));
  }
  if (flags.world_size > kMaxWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("--pipeline-parallel-size: ", num_stages, " stages of ",
                                                   flags.world_size / num_stages, " workers are more than ",
                                                   kMaxWorkers));
  }
  if (flags.world_size % num_stages != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--pipeline-parallel-size: ", flags.world_size,
                                                   " workers are not ", num_stages,
                                                   " stages of the same size"));
  }
  if (num_stages > 1 && flags.has_draft_model())
    return absl::InvalidArgumentError("--speculative: draft does not go with --pipeline-parallel-size");
  return absl::OkStatus();
}

absl::Status CheckAdapters(const Flags& flags) {
  const LoraFlags& lora = flags.lora;
  if (!lora.enabled && !lora.modules.empty())
    return absl::InvalidArgumentError("--lora-modules: needs --enable-lora");
  if (lora.max_cpu_loras > 0 && lora.max_cpu_loras < lora.max_loras) {
    return absl::InvalidArgumentError(absl::StrCat("--max-cpu-loras: ", lora.max_cpu_loras,
                                                   " is less than --max-loras (", lora.max_loras, ")"));
  }
  return absl::OkStatus();
}

// Names of models and of adapters are one space of names: a request names either.
absl::Status CheckAdapterNames(const std::vector<Flags>& each) {
  std::set<std::string> names;
  for (const Flags& model : each) {
    names.insert(model.served_model_name);
    names.insert(model.model_aliases.begin(), model.model_aliases.end());
  }
  for (const Flags& model : each) {
    for (const LoraModule& module : model.lora.modules) {
      if (names.insert(module.name).second) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--lora-modules: '", module.name, "' is the name of a model or of a second adapter"));
    }
  }
  return absl::OkStatus();
}

// Checks for flags of one model that do not go together.
absl::Status CheckModel(const Flags& flags) {
  if (flags.engine.scheduler.max_num_batched_tokens < flags.engine.scheduler.max_num_seqs) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-num-batched-tokens: ", flags.engine.scheduler.max_num_batched_tokens,
                     " is less than --max-num-seqs (", flags.engine.scheduler.max_num_seqs, ")"));
  }
  if (flags.engine.scheduler.max_long_partial_prefills > flags.engine.scheduler.max_num_partial_prefills) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-long-partial-prefills: ", flags.engine.scheduler.max_long_partial_prefills,
        " is more than --max-num-partial-prefills (", flags.engine.scheduler.max_num_partial_prefills, ")"));
  }
  if (!flags.enable_sleep_mode) {
    return absl::InvalidArgumentError(
        "--enable-sleep-mode: every engine can sleep; operators alone reach /sleep (--admin-port, "
        "--admin-api-key)");
  }
  RETURN_IF_ERROR(CheckSpeculation(flags));
  RETURN_IF_ERROR(CheckPipeline(flags));
  RETURN_IF_ERROR(CheckAdapters(flags));
  if ((!flags.local_workers || flags.discover_workers) && !flags.models.empty())
    return absl::InvalidArgumentError("--workers: several models need workers of this host: local:N");
  if (!flags.local_workers && !flags.device_indices.empty()) {
    return absl::InvalidArgumentError(
        "--device-indices: remote workers are told their GPU where they are started, by worker "
        "--device-index");
  }
  if (!flags.local_workers && !flags.run_dir.empty()) {
    return absl::InvalidArgumentError(
        "--run-dir: is for local workers; remote ones wait for their coordinator as worker --worker-grace "
        "says");
  }
  if (flags.engine.scheduler.preemption == PreemptionMode::kSwap && !MaySwap(flags)) {
    return absl::InvalidArgumentError(
        "--preemption: swap needs --swap-space, and no --host-memory-budget, which it could not keep");
  }
  if (flags.engine.scheduler.host_prefix_caching != HostPrefixCaching::kOff && !CachesOnHost(flags)) {
    return absl::InvalidArgumentError(
        "--prefix-cache-on-host: needs --enable-prefix-caching and --swap-space, and no "
        "--host-memory-budget, which it could not keep");
  }
  if (!flags.spill_dir.empty() && flags.backup != v1::BACKUP_POLICY_FILE)
    return absl::InvalidArgumentError("--spill-dir: is for --backup=file");
  return CheckReplicas(flags);
}

}  // namespace

void CountWorkers(Flags* flags) {
  // The environment counts all workers.
  if (!flags->discover_workers) flags->world_size *= flags->pipeline_parallel_size;
}

absl::Status CheckStages(const Flags& flags, int32_t num_layers) {
  if (flags.pipeline_parallel_size > num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("--pipeline-parallel-size: ", flags.pipeline_parallel_size,
                                                   " stages, but the model has ", num_layers, " layers"));
  }
  const std::vector<int32_t>& layers = flags.pipeline_layer_partition;
  const int64_t sum = std::accumulate(layers.begin(), layers.end(), int64_t{0});
  if (layers.empty() || sum == num_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--pipeline-layer-partition: ", sum, " layers in all, but the model has ", num_layers));
}

absl::Status FinishFlags(const std::vector<std::string>& positional, const Environment& environment,
                         Flags* flags) {
  for (const std::string& model : positional) {
    if (!flags->model.empty())
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", model, "'"));
    flags->model = model;
  }
  RETURN_IF_ERROR(FinishModels(environment, flags));
  if (flags->discover_workers) RETURN_IF_ERROR(DiscoverWorkers(environment, flags));
  if (flags->models.empty()) CountWorkers(flags);  // else OfEachModel does
  if (flags->cluster_host.empty()) flags->cluster_host = "127.0.0.1";
  if (flags->cluster_port < 0) flags->cluster_port = kClusterPort;
  FollowPort(flags);
  RETURN_IF_ERROR(ReadClusterSecret(environment, &flags->trust));
  RETURN_IF_ERROR(CheckTlsFiles(flags->tls, {"--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs"}));
  RETURN_IF_ERROR(CheckTlsFiles(flags->admin_tls, {"--admin-ssl-certfile", "--admin-ssl-keyfile", ""}));
  RETURN_IF_ERROR(
      FillKeys("--api-key-file", flags->api_key_file, environment, kKeyVariable, &flags->api_keys));
  RETURN_IF_ERROR(FillKeys("--admin-api-key-file", flags->admin_api_key_file, environment, kAdminKeyVariable,
                           &flags->admin_api_keys));
  SetDevMode(environment, flags);
  RETURN_IF_ERROR(AddTraceEnvironment(environment, &flags->traces));
  const std::vector<Flags> each = OfEachModel(*flags);
  for (size_t i = 0; i < each.size(); ++i) {
    const absl::Status status = CheckModel(each[i]);
    const std::string source = flags->models.empty() ? "" : flags->models[i].source;
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(source, status.message()));
  }
  RETURN_IF_ERROR(CheckAdapterNames(each));
  return CheckPorts(*flags);
}

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& args, const Environment& environment) {
  Flags flags;
  ASSIGN_OR_RETURN(const ParsedArgs parsed, ParseArgs(CoordinatorFlags(&flags), args));
  RETURN_IF_ERROR(AddServeConfig(args, &flags));
  RETURN_IF_ERROR(FinishFlags(parsed.positional, environment, &flags));
  return flags;
}

}  // namespace somnus
