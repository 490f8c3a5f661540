// The parts of flags.h that are about several models on the same devices.

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/flag_values.h"
#include "base/run_dir.h"
#include "base/status_macros.h"
#include "checkpoint/models_folder.h"
#include "coordinator/flags/flags.h"

namespace somnus {
namespace {

// Whether `value` is NAME[,NAME...]=PATH: a name has no slash, and a path that has an equals sign mostly has
// a slash before the sign.
bool HasName(const std::string& value) {
  const size_t equals = value.find('=');
  return equals != std::string::npos && equals > 0 && value.find('/') > equals;
}

absl::Status SetModel(const std::string& value, Flags* flags) {
  if (value.empty()) return absl::InvalidArgumentError("is empty");
  if (!HasName(value)) {
    flags->model = value;
    return absl::OkStatus();
  }
  const size_t equals = value.find('=');
  if (equals + 1 == value.size()) return absl::InvalidArgumentError("has no path after the name");
  if (flags->models.size() >= kMaxModels)
    return absl::InvalidArgumentError(absl::StrCat("is one model too many: there may be ", kMaxModels));
  std::vector<std::string> names = absl::StrSplit(value.substr(0, equals), ',');
  if (names.size() > kMaxServedNames)
    return absl::InvalidArgumentError(absl::StrCat("has more than ", kMaxServedNames, " names"));
  if (std::find(names.begin(), names.end(), "") != names.end())
    return absl::InvalidArgumentError("has an empty name");
  const std::string first = names.front();
  names.erase(names.begin());
  flags->models.push_back({.name = first, .path = value.substr(equals + 1), .aliases = std::move(names)});
  return absl::OkStatus();
}

absl::Status SetPriority(const std::string& value, Flags* flags) {
  const size_t equals = value.rfind('=');
  int32_t priority;
  if (equals == std::string::npos || equals == 0 || !absl::SimpleAtoi(value.substr(equals + 1), &priority))
    return absl::InvalidArgumentError("is not NAME=N");
  flags->model_priorities[value.substr(0, equals)] = priority;
  return absl::OkStatus();
}

absl::Status SetTarget(const std::string& value, std::map<std::string, absl::Duration>* targets) {
  const size_t equals = value.rfind('=');
  const bool named = equals != std::string::npos;
  const absl::StatusOr<absl::Duration> target = ParseTime(named ? value.substr(equals + 1) : value);
  if (!target.ok() || equals == 0) return absl::InvalidArgumentError("is not [NAME=]TIME");
  (*targets)[named ? value.substr(0, equals) : ""] = *target;
  return absl::OkStatus();
}

absl::Status SetPin(const std::string& value, Flags* flags) {
  if (value.empty()) return absl::InvalidArgumentError("is empty");
  flags->pinned_models.insert(value);
  return absl::OkStatus();
}

// `args` were checked where `args` were read.
void SetOwn(const std::vector<std::string>& args, Flags* flags) {
  SOMNUS_CHECK(ParseArgs(CoordinatorFlags(flags), args).ok());
}

// Clients ask for a model by any of its names.
absl::Status CheckNames(const std::vector<ModelPath>& models) {
  std::set<std::string> names;
  for (const ModelPath& model : models) {
    std::vector<std::string> own = model.aliases;
    own.push_back(model.name);
    for (const std::string& name : own) {
      if (!names.insert(name).second)
        return absl::InvalidArgumentError(absl::StrCat("--model: two models are named ", name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSeveral(const Flags& flags) {
  const auto refuse = [](const char* flag, const char* why) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", why));
  };
  if (!flags.served_model_name.empty() && flags.model.empty())
    return refuse("--served-model-name", "all models have the names that --model=NAME=PATH gives them");
  if (!flags.local_workers || flags.discover_workers)
    return refuse("--workers", "several models need workers of this host: local:N");
  const bool slo = flags.devices.residency.policy == ResidencyPolicy::kSlo;
  if (!slo && !flags.model_ttft_targets.empty())
    return refuse("--model-ttft-target", "is for --residency-policy=slo");
  if (!slo && !flags.model_tpot_targets.empty())
    return refuse("--model-tpot-target", "is for --residency-policy=slo");
  for (const LoraModule& module : flags.lora.modules) {
    if (module.base.empty())
      return refuse(
          "--lora-modules",
          absl::StrCat("'", module.name, "' needs base_model_name, since several ", "models are served")
              .c_str());
  }
  return CheckNames(flags.models);
}

absl::Status CheckOne(const Flags& flags) {
  const std::pair<const char*, bool> for_several[] = {
      {"--device-memory-budget", flags.device_memory_budget > 0},
      {"--host-memory-budget", flags.host_memory_budget > 0},
      {"--min-kv-cache-memory-bytes", flags.min_kv_cache_memory_bytes > 0},
      {"--pin-model", !flags.pinned_models.empty()},
      {"--model-priority", !flags.model_priorities.empty()},
      {"--model-ttft-target", !flags.model_ttft_targets.empty()},
      {"--model-tpot-target", !flags.model_tpot_targets.empty()}};
  for (const auto& [flag, given] : for_several) {
    if (given) return absl::InvalidArgumentError(absl::StrCat(flag, ": is for several models"));
  }
  return absl::OkStatus();
}

// A name of the models folder becomes the path that it stands for. `given`: what clients call the model then
// where no flag says so.
absl::Status FindModel(const Environment& environment, std::string* path, std::string* given = nullptr) {
  ASSIGN_OR_RETURN(const std::string found, FindModelPath(ModelsFolder(environment), *path));
  if (found != *path && given != nullptr && given->empty()) *given = *path;
  *path = found;
  return absl::OkStatus();
}

// "--served-model-name NAME PATH": the path is among the names where there is no other.
void TakePathFromNames(Flags* flags) {
  if (!flags->models.empty() || !flags->model.empty() || flags->model_aliases.empty()) return;
  flags->model = flags->model_aliases.back();
  flags->model_aliases.pop_back();
}

// The only model, of --model=NAME=PATH or of --config, becomes the model. --served-model-name says what
// responses call it; its own names stay names.
void TakeOnlyModel(Flags* flags) {
  const ModelPath only = flags->models[0];
  flags->models.clear();
  flags->model = only.path;
  std::vector<std::string> names = only.aliases;
  names.insert(names.begin(), only.name);
  if (flags->served_model_name.empty()) {
    flags->served_model_name = only.name;
    names.erase(names.begin());
  }
  std::vector<std::string>& aliases = flags->model_aliases;
  for (const std::string& name : names) {
    if (name != flags->served_model_name && std::find(aliases.begin(), aliases.end(), name) == aliases.end())
      aliases.push_back(name);
  }
  SetOwn(only.flags, flags);
}

absl::Status FindModels(const Environment& environment, Flags* flags) {
  for (ModelPath& model : flags->models) RETURN_IF_ERROR(FindModel(environment, &model.path, &model.name));
  RETURN_IF_ERROR(FindModel(environment, &flags->model, &flags->served_model_name));
  return FindModel(environment, &flags->draft_model);
}

}  // namespace

Flag ModelFlag(Flags* flags) {
  return Flag::Custom(
      "model", "[NAME=]PATH", "", [flags](const std::string& value) { return SetModel(value, flags); },
      "Hugging Face directory, GGUF file, or a name of the models folder (somnus models add); may be given "
      "without --model. --model=NAME[,NAME...]=PATH may be repeated: "
      "clients call each model by any of its names, responses by the first, and those that do not fit into "
      "memory together take turns");
}

FlagGroup SeveralModelsFlags(Flags* flags) {
  constexpr int64_t kMost = int64_t{1} << 50;
  Flags* const f = flags;
  return {
      "Several models",
      {Flag::Bytes("device-memory-budget", &f->device_memory_budget, 0, kMost,
                   "of all workers, that models which are awake may take; 0: whatever they take"),
       Flag::Bytes("host-memory-budget", &f->host_memory_budget, 0, kMost,
                   "of all workers, that models which sleep at level 1 may take: beyond it what their KV "
                   "caches keep is computed again, and then models sleep at level 2; 0: whatever they take"),
       Flag::OneOf("residency-policy", &f->devices.residency.policy,
                   {{"fifo", ResidencyPolicy::kFifo}, {"slo", ResidencyPolicy::kSlo}},
                   "fifo: what is open at a model is finished, within bounds, before another one takes its "
                   "place; slo: models with open requests take turns, between two tokens"),
       Flag::Time(
           "residency-turn", &f->devices.residency.turn, absl::Milliseconds(1), absl::Hours(24),
           "so long may a model with open requests run while others wait; slo makes turns shorter where "
           "targets ask for it"),
       Flag::Time("residency-max-wait", &f->devices.residency.max_wait, absl::Milliseconds(1),
                  absl::Hours(24),
                  "a model whose requests have waited for longer comes before all others, and under fifo "
                  "others are preempted for it"),
       Flag::Time("model-wake-timeout", &f->devices.operator_wait, absl::Milliseconds(1), absl::Hours(24),
                  "an operator's wake-up, or sleep at level 1, waits for room for that long at most"),
       Flag::Number("prefetch-cpu-share", &f->prefetch_cpu_share, 0.001, 1,
                    "of one processor, that each worker may take to bring the weights of the model that is "
                    "next from the disk into the page cache"),
       Flag::Switch("elastic-kv-cache", &f->elastic_kv_cache,
                    "KV caches of models that are awake together share --device-memory-budget: one that has "
                    "little to do shrinks for a busy one, or for a model that is to wake, and grows again"),
       Flag::Time(
           "kv-cache-hold", &f->devices.kv_hold, absl::Milliseconds(1), absl::Hours(24),
           "so long a model is taken to need as much of its KV cache as it has needed: longer for load "
           "that comes in bursts"),
       Flag::Time("kv-cache-patience", &f->devices.kv_patience, absl::ZeroDuration(), absl::Hours(24),
                  "so long a model that is to wake waits for what other models' KV caches can give; then "
                  "models are put to sleep for it"),
       Flag::Custom(
           "pin-model", "NAME", "", [f](const std::string& value) { return SetPin(value, f); },
           "this model stays awake; may be repeated"),
       Flag::Custom(
           "model-priority", "NAME=N", "", [f](const std::string& value) { return SetPriority(value, f); },
           "waiting models with a higher one wake first, unless another one has waited for long; may be "
           "repeated"),
       Flag::Custom(
           "model-ttft-target", "[NAME=]TIME", "",
           [f](const std::string& value) { return SetTarget(value, &f->model_ttft_targets); },
           "under slo: clients of this model, or of all, want their first token within this time; may be "
           "repeated"),
       Flag::Custom(
           "model-tpot-target", "[NAME=]TIME", "",
           [f](const std::string& value) { return SetTarget(value, &f->model_tpot_targets); },
           "and each further one within another such time: turns become as short as that asks for")}};
}

absl::Status FinishModels(const Environment& environment, Flags* flags) {
  TakePathFromNames(flags);
  if (flags->models.empty() && flags->model.empty())
    return absl::InvalidArgumentError("--model: no model was given; see --help");
  RETURN_IF_ERROR(FindModels(environment, flags));
  if (flags->models.size() == 1 && flags->model.empty()) TakeOnlyModel(flags);
  if (flags->models.empty()) return CheckOne(*flags);
  if (!flags->model.empty()) {
    flags->models.insert(
        flags->models.begin(),
        {.name = flags->served_model_name, .path = flags->model, .aliases = flags->model_aliases});
  }
  return CheckSeveral(*flags);
}

absl::Duration TargetOf(const std::map<std::string, absl::Duration>& targets, const std::string& name) {
  auto found = targets.find(name);
  if (found == targets.end()) found = targets.find("");
  return found == targets.end() ? absl::ZeroDuration() : found->second;
}

std::vector<std::pair<std::string, std::string>> FlagsWithModelNames(const Flags& flags) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const std::string& name : flags.pinned_models) names.emplace_back("--pin-model", name);
  for (const auto& [name, priority] : flags.model_priorities) names.emplace_back("--model-priority", name);
  for (const auto& [name, time] : flags.model_ttft_targets) names.emplace_back("--model-ttft-target", name);
  for (const auto& [name, time] : flags.model_tpot_targets) names.emplace_back("--model-tpot-target", name);
  for (const LoraModule& module : flags.lora.modules) names.emplace_back("--lora-modules", module.base);
  std::erase_if(names, [](const auto& flag) { return flag.second.empty(); });
  return names;
}

std::vector<Flags> OfEachModel(const Flags& flags) {
  if (flags.models.empty()) return {flags};
  std::vector<Flags> each;
  for (const ModelPath& model : flags.models) {
    each.push_back(flags);
    each.back().model = model.path;
    each.back().served_model_name = model.name;
    each.back().model_aliases = model.aliases;
    if (!flags.run_dir.empty()) each.back().run_dir = RunDir::ModelPath(flags.run_dir, model.name);
    std::vector<LoraModule>& adapters = each.back().lora.modules;
    std::erase_if(adapters, [&](const LoraModule& module) { return module.base != model.name; });
    SetOwn(model.flags, &each.back());
    CountWorkers(&each.back());
    for (LoraModule& module : adapters) {
      if (module.base.empty()) module.base = model.name;
    }
  }
  return each;
}

}  // namespace somnus
