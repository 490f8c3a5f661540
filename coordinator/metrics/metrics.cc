#include "coordinator/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/memory_tags.h"
#include "coordinator/metrics/adapter_metrics.h"
#include "coordinator/metrics/expert_load_metrics.h"
#include "coordinator/metrics/grammar_metrics.h"
#include "coordinator/metrics/metric_buckets.h"
#include "coordinator/metrics/preemption_series.h"
#include "coordinator/metrics/prefix_cache_series.h"
#include "coordinator/metrics/process_metrics.h"
#include "coordinator/metrics/prompt_source_series.h"
#include "coordinator/metrics/series.h"
#include "coordinator/metrics/sleep_operation_metrics.h"
#include "coordinator/metrics/speculation_metrics.h"
#include "coordinator/request/queue_refusal.h"

namespace somnus {
namespace {

class PrometheusMetrics : public Metrics {
 public:
  PrometheusMetrics(std::shared_ptr<prometheus::Registry> registry, const std::string& model_name,
                    int32_t max_model_len)
      : shared_registry_(std::move(registry)),
        series_(shared_registry_.get(), {{"model_name", model_name}, {"engine", "0"}}),
        of_model_(shared_registry_.get(), {{"model_name", model_name}}),
        token_buckets_(OneTwoFive(max_model_len)) {
    for (const char* reason : {"stop", "length", "abort", "error"}) SuccessCounter(reason);
    RejectedCounter("asleep");
    for (const char* bound : kQueueBounds) AdmissionCounter(bound);
  }

  void SetCacheConfig(const CacheConfigInfo& info) override {
    Labels labels;
    labels["block_size"] = absl::StrCat(info.block_size);
    labels["num_gpu_blocks"] = absl::StrCat(info.total_blocks);
    labels["enable_prefix_caching"] = info.enable_prefix_caching ? "True" : "False";
    labels["cache_dtype"] = info.cache_dtype;
    labels["kv_cache_size_tokens"] = absl::StrCat(static_cast<int64_t>(info.block_size) * info.total_blocks);
    series_.Gauge("vllm:cache_config_info", "Configuration of the KV cache, as labels.", labels).Set(1);
  }

  void OnStep(const StepEvent& event) override {
    iteration_tokens_.Observe(event.num_tokens);
    step_seconds_.Observe(absl::ToDoubleSeconds(event.duration));
    if (event.masks > absl::ZeroDuration()) grammars_.OnMasks(event.masks);
  }
  void OnExpertLoad(const ExpertLoadEvent& event) override { expert_load_.OnStep(event); }
  void OnRecovered(absl::Duration duration) override {
    recovery_seconds_.Observe(absl::ToDoubleSeconds(duration));
  }
  void OnTransition(const TransitionEvent& event) override {
    const std::string level = absl::StrCat(event.level);
    if (event.wakes) {
      series_.Count("somnus:wake_ups_total", "Wake-ups that changed something, by the level after them.",
                    {{"level", level}});
    } else {
      series_.Count("somnus:sleeps_total", "Sleeps that changed something, by the level that was reached.",
                    {{"level", level}});
    }
    // For each phase the slowest rank's time, because all ranks wait for that rank.
    PhaseSeconds most;
    for (const RankReport& rank : event.report.ranks) {
      for (const PhaseName& phase : kPhases)
        most.*phase.member = std::max(most.*phase.member, rank.seconds.*phase.member);
      SetRank(rank, event.wakes);
    }
    PhaseHistogram(event.wakes, "total").Observe(absl::ToDoubleSeconds(event.duration));
    for (const PhaseName& phase : kPhases)
      PhaseHistogram(event.wakes, phase.name).Observe(most.*phase.member);
  }

  void OnWeightsChanged(const WeightsEvent& event) override {
    const Labels change = {{"change", event.updates ? "update" : "reload"}};
    series_.Count("somnus:weights_changes_total",
                  "Changes of the weights that went well: reloads and updates.", change);
    series_
        .Histogram("somnus:weights_change_seconds", "Duration of reloads and updates of the weights.",
                   kTransitionBuckets, change)
        .Observe(absl::ToDoubleSeconds(event.duration));
  }

  void OnSelfCheck(const SelfCheckEvent& event) override {
    series_.Count("somnus:self_checks_total", "Self-checks of what the workers compute, by result.",
                  {{"result", SelfCheckOutcomeName(event.outcome)}});
    Histogram("somnus:self_check_seconds", "Duration of self-checks.", kTransitionBuckets)
        .Observe(absl::ToDoubleSeconds(event.duration));
  }

  void OnRequestExpired(ExpiryCause cause) override {
    series_.Count("somnus:requests_expired_total", "Requests whose time was over, by cause.",
                  {{"cause", ExpiryCauseName(cause)}});
  }
  void OnBlocksEvicted(const std::vector<BlockStay>& stays) override {
    prometheus::Histogram& lifetime =
        Histogram("vllm:kv_block_lifetime_seconds",
                  "From the allocation of a sampled KV block to its eviction.", kBlockStayBuckets);
    prometheus::Histogram& idle =
        Histogram("vllm:kv_block_idle_before_evict_seconds",
                  "From the last access to a sampled KV block to its eviction.", kBlockStayBuckets);
    prometheus::Histogram& gap =
        Histogram("vllm:kv_block_reuse_gap_seconds", "Between successive accesses to a sampled KV block.",
                  kBlockStayBuckets);
    for (const BlockStay& stay : stays) {
      lifetime.Observe(absl::ToDoubleSeconds(stay.lifetime));
      idle.Observe(absl::ToDoubleSeconds(stay.idle));
      for (const absl::Duration one : stay.reuse_gaps) gap.Observe(absl::ToDoubleSeconds(one));
    }
  }
  void OnRequestFinished(const EngineRequest& request, const FinishedRequest& end) override {
    const absl::Time scheduled = end.moments.scheduled, first_token = end.moments.first_token;
    const absl::Time finished = end.finished;
    const int32_t num_output_tokens = end.num_output_tokens;
    num_preemptions_.Observe(end.num_preemptions);
    e2e_.Observe(Seconds(request.arrival, finished));
    prompt_tokens_.Observe(request.prompt.size());
    generation_tokens_.Observe(num_output_tokens);
    // A request that was aborted while waiting was never scheduled.
    if (scheduled < request.arrival || scheduled > finished) return;
    queue_time_.Observe(Seconds(request.arrival, scheduled));
    inference_time_.Observe(Seconds(scheduled, finished));
    if (num_output_tokens < 1 || first_token < scheduled || first_token > finished) return;
    ttft_.Observe(Seconds(request.arrival, first_token));
    computed_tokens_.Observe(static_cast<double>(request.prompt.size()) - end.num_cached_tokens);
    prefill_time_.Observe(Seconds(scheduled, first_token));
    decode_time_.Observe(Seconds(first_token, finished));
    if (num_output_tokens > 1)
      time_per_token_.Observe(Seconds(first_token, finished) / (num_output_tokens - 1));
  }

  void OnRequestParams(int32_t choices, int32_t max_tokens) override {
    params_n_.Observe(choices);
    params_max_tokens_.Observe(max_tokens);
    max_generation_.Observe(max_tokens);
  }
  void OnInterTokenLatency(double seconds) override { itl_.Observe(seconds); }
  void OnSequenceEnd(FinishReason reason) override {
    SuccessCounter(reason == FinishReason::kStop     ? "stop"
                   : reason == FinishReason::kLength ? "length"
                   : reason == FinishReason::kAbort  ? "abort"
                                                     : "error")
        .Increment();
  }
  void OnRejected(const std::string& reason, const absl::Status& status) override {
    RejectedCounter(reason).Increment();
    if (const std::string bound = QueueBoundOf(status); !bound.empty()) AdmissionCounter(bound).Increment();
  }
  void OnAnswerParsed(const ParsedAnswer& answer) override {
    of_model_.Count("vllm:tool_call_parser_invocations_total", "Answers that were searched for tool calls.",
                    {{"mode", answer.streams ? "streaming" : "non_streaming"},
                     {"outcome", answer.has_calls ? "tool_call" : "no_tool_call"},
                     {"request_type", answer.request_type}});
  }
  void OnGrammarCompiled(absl::Duration duration) override { grammars_.OnCompiled(duration); }
  void OnSleepOperationBegan(const std::string& operation) override { sleep_operations_.Begin(operation); }
  void OnSleepOperationEnded(const std::string& operation, absl::Duration duration, bool succeeded) override {
    sleep_operations_.End(operation, duration, succeeded);
  }
  void OnHttpRequest(const std::string& handler, const std::string& method, int status,
                     double seconds) override {
    const std::string klass = absl::StrCat(status / 100, "xx");
    prometheus::BuildCounter()
        .Name("http_requests_total")
        .Help("HTTP requests by handler, status and method.")
        .Register(registry_)
        .Add({{"handler", handler}, {"method", method}, {"status", klass}})
        .Increment();
    prometheus::BuildHistogram()
        .Name("http_request_duration_seconds")
        .Help("Duration of HTTP requests, streams to their end.")
        .Register(registry_)
        .Add({{"handler", handler}, {"method", method}}, kHttpBuckets)
        .Observe(seconds);
  }

  void OnResidencyDecision(const std::string& action, const std::string& reason) override {
    series_.Count("somnus:residency_decisions_total",
                  "Decisions about which model is awake, by action and reason.",
                  {{"action", action}, {"reason", reason}});
  }
  void OnModelSwitch(absl::Duration room, absl::Duration wake_up) override {
    SwitchHistogram("room").Observe(absl::ToDoubleSeconds(room));
    SwitchHistogram("wake_up").Observe(absl::ToDoubleSeconds(wake_up));
    SwitchHistogram("total").Observe(absl::ToDoubleSeconds(room + wake_up));
  }

  void UpdateGrammars(const GrammarNumbers& numbers) override {
    absl::MutexLock lock(&serialize_mu_);
    grammars_.Update(numbers);
  }

  void UpdateAdapters(const AdapterNumbers& numbers) override {
    absl::MutexLock lock(&serialize_mu_);
    adapters_.Update(numbers);
  }

  void Update(const EngineStats& stats) override {
    absl::MutexLock lock(&serialize_mu_);  // or two scrapes could both add a counter's difference
    series_.Gauge("vllm:num_requests_running", "Requests in the running batch.").Set(stats.num_running);
    series_.Gauge("vllm:num_requests_waiting", "Requests waiting to be scheduled.").Set(stats.num_waiting);
    series_
        .Gauge("vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", {{"reason", "capacity"}})
        .Set(stats.num_waiting);
    series_
        .Gauge("vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", {{"reason", "deferred"}})
        .Set(0);
    series_.Gauge("vllm:kv_cache_usage_perc", "Used share of the KV cache, 1 is full.")
        .Set(stats.total_blocks > 0 ? static_cast<double>(stats.used_blocks) / stats.total_blocks : 0.0);
    series_.Gauge("somnus:kv_blocks_mapped", "KV blocks that have memory while the cache is resident.")
        .Set(stats.mapped_blocks);
    series_.Advance("somnus:kv_cache_resizes_total", "Changes of the KV cache's size, by direction.",
                    stats.num_cache_grows, {{"direction", "grow"}});
    series_.Advance("somnus:kv_cache_resizes_total", "Changes of the KV cache's size, by direction.",
                    stats.num_cache_shrinks, {{"direction", "shrink"}});
    SerializeState(stats);
    series_.Gauge("somnus:weights_version", "Version of the weights; 0: none, or they are stale.")
        .Set(static_cast<double>(stats.weights_version));
    for (const auto& [tag, bytes] : stats.resident_bytes) {
      series_.Gauge("somnus:resident_bytes", "Device memory that is resident, of all ranks.", {{"tag", tag}})
          .Set(static_cast<double>(bytes));
    }
    for (const auto& [tag, bytes] : stats.host_bytes) {
      series_
          .Gauge("somnus:host_bytes",
                 "Host memory that backups, kept KV blocks and adapters hold, of all ranks.", {{"tag", tag}})
          .Set(static_cast<double>(bytes));
    }
    series_.Advance("somnus:auto_sleeps_total", "Sleeps that an idle engine began by itself.",
                    stats.num_auto_sleeps);
    series_.Advance("somnus:auto_wake_ups_total", "Wake-ups that requests began.", stats.num_auto_wake_ups);
    series_.Advance("vllm:num_preemptions_total", "Preemptions of running sequences.", stats.num_preemptions);
    for (const CounterSeries& one : PreemptionSeries(stats))
      series_.Advance(one.name, one.help, one.value, one.labels);
    series_.Advance("vllm:prompt_tokens_total", "Prompt tokens processed.", stats.prompt_tokens);
    series_.Advance("vllm:generation_tokens_total", "Tokens generated.", stats.generation_tokens);
    for (const CounterSeries& one : PromptSourceSeries(stats))
      series_.Advance(one.name, one.help, one.value, one.labels);
    for (const CounterSeries& one : PrefixCacheSeries(stats))
      series_.Advance(one.name, one.help, one.value, one.labels);
    series_.Gauge("somnus:prefix_cache_blocks", "KV blocks in the prefix cache, used or free.")
        .Set(static_cast<double>(stats.cached_blocks.num_cached()));
    series_.Gauge("somnus:kv_host_blocks", "KV blocks that the workers' host memory has room for.")
        .Set(stats.total_host_blocks);
    series_.Gauge("somnus:kv_host_blocks_used", "KV blocks that are kept, swapped out or cached there.")
        .Set(stats.used_host_blocks);
    series_.Gauge("somnus:kv_host_blocks_cached", "KV blocks of the prefix cache among these.")
        .Set(stats.cached_host_blocks);
    series_.Advance("somnus:forked_sequences_total",
                    "Choices of a prompt that another choice of the same request has computed for them.",
                    stats.num_forks);
    for (const CounterValue& c : SpeculationCounters(stats.speculation))
      series_.Advance(c.name, c.help, c.value, c.labels);
    SerializePins(stats);
    series_.Advance("somnus:kv_blocks_given_back_total",
                    "KV blocks that running sequences gave back, since no later query attends them.",
                    stats.given_back_blocks);
    series_.Advance("somnus:kv_blocks_kept_total", "KV blocks that came back after a sleep.",
                    stats.kept_blocks);
    series_.Advance("somnus:kv_tokens_kept_total",
                    "Tokens of open requests that were not computed again after a sleep.", stats.kept_tokens);
    series_.Advance("somnus:steps_total", "Steps of the engine.", stats.num_steps);
    series_.Advance("somnus:recoveries_total", "Recoveries of the group of workers.", stats.num_recoveries);
    series_.Gauge("somnus:group_epoch", "Epoch of the group of workers: 1 at first.").Set(stats.group_epoch);
    SerializeReplicas(stats);
    expert_load_.Update();
    series_.Gauge("somnus:kv_blocks_free", "Free blocks, cached ones included.").Set(stats.free_blocks);
  }

  void AddSource(CounterSource source) override { process_.AddSource(std::move(source)); }
  std::string Serialize() override { return process_.Serialize(); }

  const std::shared_ptr<prometheus::Registry>& shared_registry() const { return shared_registry_; }

 private:
  struct PhaseName {
    const char* name;
    double PhaseSeconds::*member;
  };
  static constexpr PhaseName kPhases[] = {
      {"prepare", &PhaseSeconds::prepare}, {"commit", &PhaseSeconds::commit},
      {"copy", &PhaseSeconds::copy},       {"map", &PhaseSeconds::map},
      {"release", &PhaseSeconds::release}, {"read", &PhaseSeconds::read}};

  prometheus::Histogram& PhaseHistogram(bool wakes, const char* phase) {
    return series_.Histogram(wakes ? "somnus:wake_up_seconds" : "somnus:sleep_seconds",
                             wakes ? "Duration of wake-ups, and of their phases on the slowest rank."
                                   : "Duration of sleeps, and of their phases on the slowest rank.",
                             kTransitionBuckets, {{"phase", phase}});
  }

  prometheus::Histogram& SwitchHistogram(const char* phase) {
    return series_.Histogram(
        "somnus:model_switch_seconds",
        "From the first request for a model that slept until it was awake, and its phases.",
        kTransitionBuckets, {{"phase", phase}});
  }

  static double Seconds(absl::Time from, absl::Time to) { return absl::ToDoubleSeconds(to - from); }

  void SerializeState(const EngineStats& stats) {
    const bool asleep = IsSleeping(stats.state, stats.sleep_level, stats.paused);
    SleepState("awake", IsReady(stats.state));
    const TagState weights = stats.residency.state(kWeightsTag);
    SleepState("weights_offloaded", asleep && weights == TagState::kBackedUp);
    SleepState("discard_all", asleep && weights == TagState::kDiscarded);
    const bool paused = IsPaused(stats.state, stats.sleep_level, stats.paused);
    const bool runs =
        IsReady(stats.state) || stats.state == EngineState::kPausing || stats.state == EngineState::kDraining;
    ComponentState("scheduler", "running", runs && !paused);
    ComponentState("scheduler", "paused", paused);
    ComponentState("weights", "resident", weights == TagState::kResident || weights == TagState::kStale);
    ComponentState("weights", "offloaded", weights == TagState::kBackedUp);
    ComponentState("weights", "discarded", weights == TagState::kDiscarded);
    const bool has_cache = stats.residency.state(kKvCacheTag) == TagState::kResident;
    ComponentState("kv_cache", "resident", has_cache);
    ComponentState("kv_cache", "discarded", !has_cache);
    for (const EngineState state : kEngineStates) {
      series_
          .Gauge("somnus:engine_state", "1 for the state that the engine is in.",
                 {{"state", EngineStateName(state)}})
          .Set(stats.state == state ? 1 : 0);
    }
    series_
        .Gauge("somnus:oldest_wait_seconds",
               "How long the oldest open request has waited for the model to wake up; 0: none waits.")
        .Set(absl::ToDoubleSeconds(stats.oldest_wait));
  }

  // The memory and the times of one rank, after a sleep or a wake-up.
  void SetRank(const RankReport& rank, bool wakes) const {
    const Labels name = {{"replica", absl::StrCat(rank.replica)}, {"rank", absl::StrCat(rank.rank)}};
    const auto with = [&](const char* label, const std::string& value) {
      Labels labels = name;
      labels[label] = value;
      return labels;
    };
    for (const auto& [tag, report] : rank.tags) {
      series_
          .Gauge("somnus:rank_resident_bytes", "Device memory that is resident, of one rank.",
                 with("tag", tag))
          .Set(static_cast<double>(report.resident_bytes));
      series_
          .Gauge("somnus:rank_host_bytes",
                 "Host memory that backups, kept KV blocks and adapters hold, of one rank.", with("tag", tag))
          .Set(static_cast<double>(report.host_bytes));
    }
    series_
        .Gauge("somnus:rank_transition_seconds", "What the last sleep or wake-up took on one rank.",
               with("transition", wakes ? "wake_up" : "sleep"))
        .Set(rank.seconds.prepare + rank.seconds.commit);
  }

  void SerializePins(const EngineStats& stats) {
    series_.Gauge("somnus:pinned_prefix_blocks", "KV blocks that pinned prefixes hold.")
        .Set(stats.pinned_blocks);
    const auto advance = [this](const char* cause, int64_t count) {
      series_.Advance("somnus:pinned_prefix_releases_total",
                      "Times that a pinned prefix has lost blocks, by cause.", count, {{"cause", cause}});
    };
    advance("no_blocks", stats.pin_releases.no_blocks);
    advance("forgotten", stats.pin_releases.forgotten);
    advance("shrunk", stats.pin_releases.shrunk);
  }

  void SerializeReplicas(const EngineStats& stats) {
    if (stats.replicas.empty()) return;
    series_.Advance("somnus:requests_moved_total", "Requests that left a replica for another one.",
                    stats.num_moved);
    for (size_t i = 0; i < stats.replicas.size(); ++i) {
      const ReplicaStats& replica = stats.replicas[i];
      const Labels name = {{"replica", absl::StrCat(i)}};
      series_.Advance("somnus:replica_requests_total", "Requests handed to the replica.",
                      replica.num_requests, name);
      series_.Advance("somnus:replica_recoveries_total", "Recoveries of the replica.", replica.num_recoveries,
                      name);
      series_.Gauge("somnus:replica_requests_running", "Requests that run there.", name)
          .Set(replica.num_running);
      series_.Gauge("somnus:replica_requests_waiting", "Requests that wait there.", name)
          .Set(replica.num_waiting);
      series_.Gauge("somnus:replica_group_epoch", "Epoch of the replica's workers.", name)
          .Set(replica.group_epoch);
      for (const EngineState state : kEngineStates) {
        series_
            .Gauge("somnus:replica_state", "1 for the state that the replica is in.",
                   {{"replica", absl::StrCat(i)}, {"state", EngineStateName(state)}})
            .Set(replica.state == state ? 1 : 0);
      }
    }
  }

  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const Buckets& buckets) const {
    return series_.Histogram(name, help, buckets);
  }
  prometheus::Histogram& RequestTime(const std::string& name, const std::string& help) const {
    return Histogram(name, help, kRequestBuckets);
  }
  prometheus::Histogram& RequestTokens(const std::string& name, const std::string& help) const {
    return Histogram(name, help, token_buckets_);
  }
  // A time under vLLM's name and buckets, and under our name with finer buckets.
  struct TwoScales {
    prometheus::Histogram& vllm;
    prometheus::Histogram& fine;
    void Observe(double seconds) const {
      vllm.Observe(seconds);
      fine.Observe(seconds);
    }
  };
  TwoScales OnTwoScales(const std::string& name, const std::string& help, const Buckets& buckets) {
    return {Histogram("vllm:" + name, help, buckets), Histogram("somnus:" + name, help, kFineBuckets)};
  }
  prometheus::Counter& SuccessCounter(const std::string& reason) {
    return series_.Counter("vllm:request_success_total", "Finished sequences by reason.",
                           {{"finished_reason", reason}});
  }
  prometheus::Counter& RejectedCounter(const std::string& reason) {
    return series_.Counter("somnus:requests_rejected_total", "Requests refused, by reason.",
                           {{"reason", reason}});
  }
  prometheus::Counter& AdmissionCounter(const std::string& bound) {
    return of_model_.Counter("vllm:admission_rejections_total",
                             "Requests for which the queue had no room, by the bound that was met.",
                             {{"reason", bound}});
  }
  void SleepState(const char* name, bool on) {
    series_
        .Gauge("vllm:engine_sleep_state", "1 for the state that the engine is in.", {{"sleep_state", name}})
        .Set(on ? 1 : 0);
  }

  void ComponentState(const char* component, const char* state, bool on) {
    series_
        .Gauge("vllm:engine_sleep_component_state", "1 for the state that each component is in.",
               {{"component", component}, {"state", state}})
        .Set(on ? 1 : 0);
  }

  absl::Mutex serialize_mu_;
  const std::shared_ptr<prometheus::Registry> shared_registry_;  // of all models of this process
  prometheus::Registry& registry_ = *shared_registry_;
  ProcessMetrics process_{&registry_};
  const Series series_;    // of the model's engine
  const Series of_model_;  // without the label `engine`, as vLLM has them
  const Buckets token_buckets_;
  GrammarMetrics grammars_{&series_};
  AdapterMetrics adapters_{&series_};
  ExpertLoadMetrics expert_load_{&series_};
  SleepOperationMetrics sleep_operations_{&registry_};
  prometheus::Histogram& iteration_tokens_ =
      Histogram("vllm:iteration_tokens_total", "Tokens per step.", kIterationBuckets);
  prometheus::Histogram& step_seconds_ =
      Histogram("somnus:step_duration_seconds", "Duration of a step.", kFineBuckets);
  prometheus::Histogram& recovery_seconds_ =
      Histogram("somnus:recovery_seconds", "From the loss of the group until it is whole.", kRecoveryBuckets);
  const TwoScales ttft_ =
      OnTwoScales("time_to_first_token_seconds", "Time to the first token.", kTtftBuckets);
  const TwoScales itl_ = OnTwoScales("inter_token_latency_seconds", "Time between tokens.", kItlBuckets);
  prometheus::Histogram& time_per_token_ = Histogram("vllm:request_time_per_output_token_seconds",
                                                     "Mean time per output token of a request.", kItlBuckets);
  prometheus::Histogram& e2e_ = RequestTime("vllm:e2e_request_latency_seconds", "Arrival to end.");
  prometheus::Histogram& queue_time_ = RequestTime("vllm:request_queue_time_seconds", "Time in the queue.");
  prometheus::Histogram& inference_time_ =
      RequestTime("vllm:request_inference_time_seconds", "Time in the running state.");
  prometheus::Histogram& prefill_time_ = RequestTime("vllm:request_prefill_time_seconds", "Time in prefill.");
  prometheus::Histogram& decode_time_ = RequestTime("vllm:request_decode_time_seconds", "Time in decode.");
  prometheus::Histogram& prompt_tokens_ =
      RequestTokens("vllm:request_prompt_tokens", "Prompt tokens of a request.");
  prometheus::Histogram& generation_tokens_ =
      RequestTokens("vllm:request_generation_tokens", "Tokens generated by a request.");
  prometheus::Histogram& computed_tokens_ =
      RequestTokens("vllm:request_prefill_kv_computed_tokens",
                    "Prompt tokens of a request that were computed, without those of the prefix cache.");
  prometheus::Histogram& num_preemptions_ =
      Histogram("vllm:request_num_preemptions", "Preemptions of a request.", kPreemptionBuckets);
  prometheus::Histogram& max_generation_ =
      RequestTokens("vllm:request_max_num_generation_tokens", "Most tokens a request may generate.");
  prometheus::Histogram& params_n_ = Histogram("vllm:request_params_n", "n of a request.", {1, 2, 5, 10, 20});
  prometheus::Histogram& params_max_tokens_ =
      RequestTokens("vllm:request_params_max_tokens", "max_tokens of a request.");
};

}  // namespace

std::unique_ptr<Metrics> Metrics::Create(const std::string& model_name, int32_t max_model_len,
                                         const Metrics* beside) {
  auto registry = beside != nullptr
                      ? static_cast<const PrometheusMetrics*>(beside)->shared_registry()
                      : std::make_shared<prometheus::Registry>(prometheus::Registry::InsertBehavior::Merge);
  return std::make_unique<PrometheusMetrics>(std::move(registry), model_name, max_model_len);
}

}  // namespace somnus
