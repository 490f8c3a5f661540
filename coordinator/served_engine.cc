#include "coordinator/served_engine.h"

#include <atomic>
#include <filesystem>
#include <future>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/counted.h"
#include "base/log.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/models_folder.h"
#include "checkpoint/sentence_modules.h"
#include "coordinator/adapters/adapter_engine.h"
#include "coordinator/adapters/adapter_registry.h"
#include "coordinator/draft_model.h"
#include "coordinator/engine/auto_sleep_engine.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/engine/kv_event_log.h"
#include "coordinator/flags/engine_config.h"
#include "coordinator/flags/kv_cache_dtype.h"
#include "coordinator/flags/quantization.h"
#include "coordinator/group/load_plan.h"
#include "coordinator/group/replica_groups.h"
#include "coordinator/group/run_state.h"
#include "coordinator/group/served_weights.h"
#include "coordinator/metrics/latency_sums.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/metrics/step_trace.h"
#include "coordinator/replicas/replica_set.h"
#include "coordinator/residency/start_report.h"
#include "coordinator/scheduler/ngram_lookup.h"
#include "coordinator/scheduler/step_size.h"
#include "coordinator/scheduler/worker_drafts.h"
#include "coordinator/several_models/shared_devices.h"
#include "coordinator/structured/grammar_limits.h"
#include "coordinator/text_parts.h"
#include "proto/status.h"

namespace somnus {
namespace {

LoadFormat Format(const Flags& flags) {
  return flags.load_format == v1::LOAD_FORMAT_DUMMY ? LoadFormat::kDummy : LoadFormat::kAuto;
}

MakeDrafter MakeDrafterOf(const Flags& flags) {
  if (flags.has_draft_model()) return [] { return std::make_unique<WorkerDrafts>(); };
  return [min = flags.prompt_lookup_min, max = flags.prompt_lookup_max] {
    return std::make_unique<NgramLookup>(min, max);
  };
}

QueueLimits QueueOf(const Flags& flags) {
  QueueLimits limits = flags.engine.queue;
  if (flags.fairness == "user") limits.max_user_share = flags.max_user_queue_share;
  return limits;
}

EngineOptions MakeEngineOptions(const Flags& flags, const ModelConfig& config, const KvPlan& plan) {
  EngineOptions options = flags.engine;
  if (!flags.models.empty()) options.log_name = absl::StrCat(flags.served_model_name, ": ");
  options.scheduler.max_model_len = plan.max_model_len;
  options.scheduler.num_stages = flags.pipeline_parallel_size;
  options.scheduler.fills_stages = options.async_scheduling;
  if (!MaySwap(flags)) options.scheduler.preemption = PreemptionMode::kRecompute;
  if (!CachesOnHost(flags)) options.scheduler.host_prefix_caching = HostPrefixCaching::kOff;
  options.scheduler.speculation.asks_workers = flags.has_draft_model();
  options.scheduler.speculation.make_drafter = MakeDrafterOf(flags);
  options.scheduler.blocks.num_blocks = plan.num_blocks;
  options.scheduler.blocks.num_host_blocks = plan.num_host_blocks;
  options.scheduler.blocks.attention_reach = AttentionReachOf(flags, config);
  if (flags.kv_cache_metrics) options.scheduler.blocks.residency_sample = flags.kv_cache_metrics_sample;
  options.keep_kv_on_sleep = KeepsKvOnSleep(flags);
  options.keeps_cached_blocks = flags.keep_kv_on_sleep.has_value();
  options.kv_block_bytes = plan.kv_block_bytes;
  options.world_size = flags.world_size;
  options.queue = QueueOf(flags);
  if (options.stale_weights_timeout == absl::ZeroDuration())
    options.stale_weights_timeout = absl::InfiniteDuration();
  options.vocab_size = config.vocab_size;
  options.scheduler.max_loras = flags.lora.max_loras;
  options.scheduler.pooled_bytes = PooledStateBytes(config.embedding_dim);
  return options;
}

Pooling PoolingOf(SentenceModules::Pooling pooling) {
  switch (pooling) {
    case SentenceModules::Pooling::kLast:
      return Pooling::kLast;
    case SentenceModules::Pooling::kMean:
      return Pooling::kMean;
    case SentenceModules::Pooling::kCls:
      return Pooling::kCls;
  }
  return Pooling::kLast;
}

PoolingOptions PoolingOptionsOf(const PoolingFlags& flags, const ModelConfig& config,
                                const std::optional<SentenceModules>& modules) {
  PoolingOptions options{.generates = flags.generates};
  if (modules.has_value()) {
    options.type = PoolingOf(modules->pooling);
    options.normalizes = modules->normalizes;
    if (!flags.type.has_value() && !modules->missing.empty()) {
      options.problem =
          absl::StrCat("the model's embeddings need ", modules->missing,
                       ", which this server does not have; with --pooling-type=last, mean or cls it "
                       "makes embeddings without");
    }
  }
  options.type = flags.type.value_or(options.type);
  options.matryoshka = flags.matryoshka.value_or(
      MatryoshkaDimensions{.any = config.is_matryoshka && config.matryoshka_dimensions.empty(),
                           .listed = config.matryoshka_dimensions});
  return options;
}

ReplicaRetry MakeReplicaRetry(const Flags& flags) {
  ReplicaRetry retry;
  if (flags.replica_retry_pause > absl::ZeroDuration()) retry.first_pause = flags.replica_retry_pause;
  // Nobody may be there to start remote workers again.
  retry.restart_workers = flags.local_workers;
  return retry;
}

absl::StatusOr<int32_t> ResolveMaxModelLen(const Flags& flags, const ModelConfig& config) {
  if (flags.max_model_len == 0) return config.max_position_embeddings;
  if (flags.max_model_len <= config.max_position_embeddings) return flags.max_model_len;
  return absl::InvalidArgumentError(absl::StrCat("--max-model-len: ", flags.max_model_len,
                                                 " is more than the model's ", config.max_position_embeddings,
                                                 " positions"));
}

// Writes down which weights are served, for the next server.
class WeightsKeeper : public PassingObserver {
 public:
  WeightsKeeper(EngineObserver* next, std::string run_dir, std::string log_name)
      : PassingObserver(next), run_dir_(std::move(run_dir)), log_name_(std::move(log_name)) {}

  void OnWeightsChanged(const WeightsEvent& event) override {
    PassingObserver::OnWeightsChanged(event);
    if (run_dir_.empty()) return;
    if (const absl::Status status = RecordWeights(run_dir_, event.version, event.source); !status.ok())
      LogWarning("{}--run-dir: {}", log_name_, std::string(status.message()));
  }

 private:
  const std::string run_dir_;
  const std::string log_name_;
};

class ServedEngineImpl : public ServedEngine {
 public:
  explicit ServedEngineImpl(const Flags& flags) : flags_(flags), workers_(flags) {}

  absl::Status Open(const Metrics* beside) override {
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(flags_.model, Format(flags_));
    if (absl::IsNotFound(checkpoint.status()) && IsModelName(flags_.model)) {
      return absl::NotFoundError(
          absl::StrCat("there is no file, directory or model named '", flags_.model,
                       "'; somnus models add PATH gives a model a name, and somnus list "
                       "shows names"));
    }
    if (!checkpoint.ok()) return Annotate(checkpoint.status(), flags_.model);
    checkpoint_ = *std::move(checkpoint);
    if (const absl::Status found = checkpoint_->FindTokenizer(); !found.ok())
      return Annotate(found, flags_.model);
    const ModelConfig& config = checkpoint_->config();
    RETURN_IF_ERROR(CheckQuantization(flags_.quantization, config));
    RETURN_IF_ERROR(CheckStages(flags_, config.num_layers));
    ASSIGN_OR_RETURN(max_model_len_, ResolveMaxModelLen(flags_, config));
    num_layers_ = config.num_layers;
    if (flags_.has_draft_model()) {
      ASSIGN_OR_RETURN(const ModelConfig draft,
                       CheckDraftModel(flags_.draft_model, Format(flags_), *checkpoint_, max_model_len_,
                                       ReplicaPrefix(flags_)));
      num_layers_ += draft.num_layers;
    }
    name_ = flags_.served_model_name.empty() ? config.name : flags_.served_model_name;
    metrics_ = Metrics::Create(name_, max_model_len_, beside);
    latencies_ = std::make_shared<LatencySums>(metrics_.get());
    trace_ = std::make_shared<StepTrace>(latencies_.get(), flags_.trace);
    phase_ = StartPhase::kBegins;
    return absl::OkStatus();
  }

  const std::string& name() const override { return name_; }
  const std::shared_ptr<Metrics>& metrics() const override { return metrics_; }

  bool HasLeftWorkers() const override {
    return !flags_.run_dir.empty() && somnus::HasLeftWorkers(flags_.run_dir);
  }

  absl::Status ReadText() override {
    BeginText();
    phase_ = StartPhase::kText;
    const absl::Status read = text_.get().status();
    phase_ = StartPhase::kBegins;
    return read;
  }

  absl::Status Load(const std::function<absl::Status()>& make_room) override {
    LogInfo("{}loading {} from {}{} into {}", LogName(), name_, flags_.model,
            flags_.has_draft_model() ? absl::StrCat(" and the draft model ", flags_.draft_model) : "",
            Counted(flags_.world_size * flags_.data_parallel_size, "worker"));
    phase_ = StartPhase::kFiles;
    ASSIGN_OR_RETURN(const std::string fingerprint, CheckpointFingerprint(flags_.model, Format(flags_)));
    if (std::filesystem::is_directory(flags_.model)) {
      ASSIGN_OR_RETURN(sentence_modules_, ReadSentenceModules(flags_.model));
    }
    if (!text_.valid()) BeginText();
    phase_ = StartPhase::kWorkers;
    RETURN_IF_ERROR(workers_.Start(checkpoint_->config(), max_model_len_, fingerprint));
    if (!workers_.adopted()) RETURN_IF_ERROR(make_room());
    ASSIGN_OR_RETURN(plans_, workers_.Load());
    return absl::OkStatus();
  }

  absl::StatusOr<ServedModel> Serve(SharedDevices* devices) override {
    phase_ = StartPhase::kText;
    ASSIGN_OR_RETURN(TextParts parts, text_.get());
    text_ = {};
    phase_ = StartPhase::kEnds;
    keeper_ = std::make_unique<WeightsKeeper>(trace_.get(), flags_.run_dir, LogName());
    const ModelConfig& config = checkpoint_->config();
    CacheConfigInfo cache;
    cache.block_size = flags_.engine.scheduler.blocks.block_size;
    for (const KvPlan& plan : plans_)
      cache.total_blocks += static_cast<int32_t>(TotalBlocks(plan.num_blocks));
    cache.enable_prefix_caching = flags_.engine.scheduler.blocks.enable_prefix_caching;
    cache.cache_dtype = flags_.kv_cache_dtype_name;
    metrics_->SetCacheConfig(cache);
    kv_events_ = MakeKvEvents();
    const SharingModel sharing = Sharing();
    engine_ = devices == nullptr ? MakeEngine() : Share(devices, sharing);
    phase_ = StartPhase::kAdapters;
    RETURN_IF_ERROR(LoadAdapters());
    phase_ = StartPhase::kEnds;
    if (adapters_ != nullptr)
      engine_ = std::make_shared<AdapterEngine>(engine_, adapters_, QueueOf(flags_), keeper_.get());
    ServedModel model;
    model.name = name_;
    model.aliases = flags_.model_aliases;
    model.history = std::make_shared<RequestHistory>(static_cast<size_t>(flags_.request_history));
    model.max_request_events = flags_.max_request_events;
    model.pinned = sharing.pinned;
    model.priority = sharing.priority;
    model.ttft_target = sharing.targets.ttft;
    model.tpot_target = sharing.targets.tpot;
    model.engine = engine_;
    model.adapters = adapters_;
    model.tokenizer = std::move(parts.tokenizer);
    model.templates = std::move(parts.templates);
    model.turn_format = parts.turn_format;
    model.arguments_form = parts.arguments_form;
    model.grammars = std::move(parts.grammars);
    model.forced_tokenizer = std::move(parts.forced_tokenizer);
    model.grammar_problem = std::move(parts.grammar_problem);
    model.default_template_kwargs = std::move(parts.default_template_kwargs);
    model.gate = flags_.chat.gate;
    model.gate.max_output_depth = flags_.chat.grammar_limits.depth;
    model.auto_tool_choice = flags_.chat.auto_tool_choice;
    model.pooling = PoolingOptionsOf(flags_.pooling, config, sentence_modules_);
    model.metrics = metrics_;
    model.trace = trace_;
    model.latencies = latencies_;
    model.kv_events = kv_events_;
    model.weight_labels = weight_labels_;
    NoteWeights(&model);
    model.rank_status = [this] { return RankStatuses(); };
    model.weight_checksums = [this] { return workers_.ChecksumWeights(); };
    model.world_size = flags_.world_size;
    model.config = config;
    model.config.eos_token_ids = std::move(parts.eos_token_ids);
    const v1::DType dtype = ResolveDType(flags_.dtype, config.stored_type);
    model.kv_cache_dtype = KvCacheDTypeName(ResolveKvCacheDType(flags_.kv_cache_dtype, dtype));
    model.dtype = KvCacheDTypeName(dtype);
    model.max_num_seqs = flags_.engine.scheduler.max_num_seqs;
    if (std::filesystem::is_directory(flags_.model)) model.tokenizer_folder = flags_.model;
    model.chat_template = flags_.chat.chat_template;
    model.engine_config = EngineConfigJson(flags_, {.served_model_name = name_,
                                                    .dtype = dtype,
                                                    .max_model_len = max_model_len_,
                                                    .num_blocks = cache.total_blocks});
    model.generation_defaults = flags_.generation_config;
    // The most frequent form is ready soon, so that the first request with a form does not wait for the
    // vocabulary to be sorted.
    if (model.grammars != nullptr)
      model.grammars->Get({.kind = GrammarKind::kJsonObject}, [](const GrammarCache::Result&) {});
    return model;
  }

  void Interrupt(const absl::Status& reason) override { workers_.Interrupt(reason); }
  std::vector<v1::RankStatus> RankStatuses() override { return workers_.RankStatuses(); }
  StateReport Starting() const override {
    StartProgress progress = {.phase = phase_};
    if (progress.phase == StartPhase::kWorkers) {
      progress.num_workers = flags_.world_size * flags_.data_parallel_size;
      progress.num_come = workers_.NumCome();
      progress.have_weights = workers_.HasWeights();
      if (!flags_.local_workers) progress.cluster_port = flags_.cluster_port;
    }
    return ReportStart(progress, created_);
  }

  void Drain(absl::Duration grace) override {
    if (engine_ == nullptr) return;
    SayWhichWeightsEnd();
    engine_->DrainAndStop(grace);
    if (kv_events_ != nullptr) kv_events_->End();
    engine_->OnStateChange(nullptr);
  }

  void EndWorkers(bool leave) override { return leave ? workers_.Leave() : workers_.Stop(); }

 private:
  // At the front of lines about the model, where there are several.
  std::string LogName() const { return flags_.models.empty() ? "" : absl::StrCat(name_, ": "); }

  // Reads the tokenizer, templates and grammars' vocabulary on a thread. An error there ends the start and
  // the load of the workers, since the model would be refused in the end.
  void BeginText() {
    ChatFlags chat = flags_.chat;
    chat.grammar_cache.on_compiled = [metrics = metrics_](absl::Duration duration) {
      metrics->OnGrammarCompiled(duration);
    };
    text_ = std::async(std::launch::async, [this, chat] {
      absl::StatusOr<TextParts> parts = ReadTextParts(*checkpoint_, flags_.model, chat, LogName());
      if (!parts.ok()) workers_.Interrupt(parts.status());
      return parts;
    });
  }

  // Makes the registry of adapters, where there may be adapters, and loads the adapters that flags name.
  absl::Status LoadAdapters() {
    if (!flags_.lora.enabled) return absl::OkStatus();
    adapters_ = std::make_shared<AdapterRegistry>(
        engine_, AdapterRegistryOptions{.max_adapters = MaxAdapters(flags_.lora),
                                        .max_loras = flags_.lora.max_loras,
                                        .unload_timeout = flags_.lora.unload_timeout,
                                        .retry_pause = flags_.lora.retry_pause,
                                        .ready_timeout = flags_.lora.ready_timeout,
                                        .max_names = flags_.lora.max_names});
    for (const LoraModule& module : flags_.lora.modules) {
      if (!module.base.empty() && module.base != name_) continue;
      const absl::Status loaded = module.name == name_
                                      ? absl::InvalidArgumentError("the model has that name")
                                      : adapters_->Load(module.name, module.path, /*in_place=*/false);
      if (!loaded.ok()) return Annotate(loaded, absl::StrCat("--lora-modules: ", module.name));
      LogInfo("{}adapter {} from {}", LogName(), module.name, module.path);
    }
    return absl::OkStatus();
  }

  // Null: nobody can follow the prefix cache. Numbers begin with the time, so that they are larger than the
  // numbers of every earlier process, which had fewer batches than microseconds.
  std::shared_ptr<KvEventLog> MakeKvEvents() const {
    if (flags_.max_kv_events == 0 || !flags_.engine.scheduler.blocks.enable_prefix_caching) return nullptr;
    return std::make_shared<KvEventLog>(
        KvEventLogOptions{.max_events = flags_.max_kv_events,
                          .block_size = flags_.engine.scheduler.blocks.block_size,
                          .num_replicas = static_cast<int32_t>(plans_.size()),
                          .first_sequence = absl::ToUnixMicros(absl::Now())});
  }

  void NoteWeights(ServedModel* model) const {
    const Weights weights = workers_.weights(0);
    model->first_weights_version = weights.version;
    model->weights_note = NoteOfOlderWeights(flags_.run_dir, weights.version, weights.source());
    if (!model->weights_note.empty()) LogWarning("{}{}", LogName(), model->weights_note);
  }

  // Logs the checkpoint that a restart goes back to, while the engine still knows the present weights.
  void SayWhichWeightsEnd() const {
    const EngineStats stats = engine_->Stats();
    const bool differ = stats.weights_version > 0 && stats.weights_source != workers_.weights(0).source();
    // In a run directory the version goes on, too.
    if (!differ && (!flags_.run_dir.empty() || stats.weights_version <= workers_.weights(0).version)) return;
    LogInfo("{}version {} of the weights, from {}, ends with this server; the next one begins with {}",
            LogName(), stats.weights_version, stats.weights_source, flags_.model);
  }

  // With one replica that sleeps at an operator's word alone, the engine is the loop, and nothing is between
  // the loop and the API.
  std::shared_ptr<Engine> MakeEngine() {
    const auto make = [&](EngineObserver* observer) { return MakeReplicas(observer); };
    const AutoSleepOptions& options = flags_.auto_sleep;
    if (options.arrivals == SleepArrivals::kQueue && options.idle_sleep == absl::ZeroDuration())
      return make(keeper_.get());
    return std::make_shared<AutoSleepEngine>(options, keeper_.get(), make);
  }

  std::shared_ptr<Engine> MakeReplicas(EngineObserver* observer) {
    std::vector<ReplicaOptions> replicas;
    const std::shared_ptr<UserAccounts> accounts =
        flags_.fairness == "user" ? UserAccounts::Create(flags_.max_fair_users) : nullptr;
    for (size_t i = 0; i < plans_.size(); ++i) {
      replicas.push_back({MakeEngineOptions(flags_, checkpoint_->config(), plans_[i]), workers_.executor(i)});
      replicas.back().engine.scheduler.accounts = accounts;
      replicas.back().engine.kv_events = kv_events_;
      replicas.back().engine.weight_labels = weight_labels_;
      replicas.back().engine.residency = workers_.residency(i);
      replicas.back().engine.weights = workers_.weights(i);
      replicas.back().engine.num_mapped_blocks = workers_.num_mapped_blocks(i);
    }
    if (replicas.size() > 1)
      return std::make_shared<ReplicaSet>(std::move(replicas), observer, MakeReplicaRetry(flags_));
    return std::make_shared<EngineLoop>(std::move(replicas[0].engine), replicas[0].executor, observer);
  }

  // What the other models must know of this model where several models share the devices.
  SharingModel Sharing() const {
    SharingModel model;
    model.name = name_;
    model.pinned = flags_.pinned_models.count(name_) > 0;
    const auto priority = flags_.model_priorities.find(name_);
    if (priority != flags_.model_priorities.end()) model.priority = priority->second;
    model.targets = {.ttft = TargetOf(flags_.model_ttft_targets, name_),
                     .tpot = TargetOf(flags_.model_tpot_targets, name_)};
    if (flags_.auto_sleep.idle_sleep > absl::ZeroDuration()) model.idle_sleep = flags_.auto_sleep.idle_sleep;
    model.idle_level = flags_.auto_sleep.idle_level;
    if (flags_.backup == v1::BACKUP_POLICY_FILE)
      model.backup_memory = flags_.spill_dir.empty() ? BackupMemory::kOnlyCopy : BackupMemory::kNever;
    const int64_t num_workers = int64_t{flags_.world_size} * flags_.data_parallel_size;
    model.compresses_backup = flags_.backup == v1::BACKUP_POLICY_COMPRESS;
    model.elastic_kv = flags_.elastic_kv_cache;
    model.min_kv_bytes = flags_.min_kv_cache_memory_bytes * num_workers;
    // A worker of a pipeline has the rows of its stage's layers.
    model.num_kv_rows = num_workers / flags_.pipeline_parallel_size * num_layers_;
    model.kv_block_bytes = plans_.front().kv_block_bytes;
    model.on_decision = [metrics = metrics_](const ResidencyDecision& decision) {
      metrics->OnResidencyDecision(ResidencyActionName(decision.action),
                                   ResidencyReasonName(decision.reason));
    };
    model.on_resize = [metrics = metrics_](bool grows, KvResizeReason reason) {
      metrics->OnResidencyDecision(grows ? "grow_kv_cache" : "shrink_kv_cache", KvResizeReasonName(reason));
    };
    model.on_switch = [metrics = metrics_](const ModelSwitch& done) {
      metrics->OnModelSwitch(done.room, done.wake_up);
    };
    return model;
  }

  std::shared_ptr<Engine> Share(SharedDevices* devices, const SharingModel& model) {
    return devices->Add(model, keeper_.get(),
                        [this](EngineObserver* observer) { return MakeReplicas(observer); });
  }

  const Flags flags_;
  const absl::Time created_ = absl::Now();
  std::atomic<StartPhase> phase_{StartPhase::kFiles};
  std::string name_;
  int32_t max_model_len_ = 0;
  int32_t num_layers_ = 0;  // with those of a draft model
  std::unique_ptr<Checkpoint> checkpoint_;
  std::optional<SentenceModules> sentence_modules_;
  std::shared_ptr<Metrics> metrics_;
  std::unique_ptr<WeightsKeeper> keeper_;   // the engine's observer; tells trace_
  std::shared_ptr<LatencySums> latencies_;  // tells metrics_
  std::shared_ptr<StepTrace> trace_;        // the engine reports to it; tells latencies_
  ReplicaGroups workers_;
  // Ends before the checkpoint and the workers that it knows.
  std::shared_future<absl::StatusOr<TextParts>> text_;
  std::vector<KvPlan> plans_;
  std::shared_ptr<KvEventLog> kv_events_;  // of all replicas; null: there is none
  const std::shared_ptr<WeightLabels> weight_labels_ = std::make_shared<WeightLabels>();
  std::shared_ptr<AdapterRegistry> adapters_;  // null: the model takes none
  std::shared_ptr<Engine> engine_;             // ends before the workers, whose executors it borrows
};

}  // namespace

std::unique_ptr<ServedEngine> ServedEngine::Create(const Flags& flags) {
  return std::make_unique<ServedEngineImpl>(flags);
}

}  // namespace somnus
