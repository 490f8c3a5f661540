#include "coordinator/metrics/metrics.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/request/queue_refusal.h"

namespace somnus {
namespace {

bool Has(const std::string& text, const std::string& line) {
  return absl::StrContains(absl::StrCat("\n", text), absl::StrCat("\n", line, "\n"));
}

TEST(MetricsTest, EngineNumbersAppearUnderVllmNames) {
  const auto metrics = Metrics::Create("m", 4096);
  EngineStats stats;
  stats.state = EngineState::kAwake;
  stats.num_running = 3;
  stats.num_waiting = 2;
  stats.total_blocks = 8;
  stats.used_blocks = 2;
  stats.prompt_tokens = 10;
  stats.num_preemptions = 1;
  const std::string text = metrics->Serialize(stats);
  const std::string labels = "{engine=\"0\",model_name=\"m\"} ";
  EXPECT_TRUE(Has(text, "vllm:num_requests_running" + labels + "3"));
  EXPECT_TRUE(Has(text, "vllm:num_requests_waiting" + labels + "2"));
  EXPECT_TRUE(Has(text, "vllm:kv_cache_usage_perc" + labels + "0.25"));
  EXPECT_TRUE(Has(text, "vllm:prompt_tokens_total" + labels + "10"));
  EXPECT_TRUE(Has(text, "vllm:num_preemptions_total" + labels + "1"));
  EXPECT_TRUE(Has(text, "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"} 1"));
  EXPECT_TRUE(Has(text, "# TYPE vllm:prompt_tokens_total counter"));
  EXPECT_TRUE(Has(text, "# TYPE vllm:time_to_first_token_seconds histogram"));
}

TEST(MetricsTest, BoundsOfBucketsAreSpelledAsByVllm) {
  const auto metrics = Metrics::Create("a \",le=\"1\"} ", 2000000);
  const std::string text = metrics->Serialize(EngineStats());
  const auto bucket = [&](const std::string& name, const std::string& bound) {
    return Has(text, absl::StrCat(name, "_bucket{engine=\"0\",model_name=\"a \\\",le=\\\"1\\\"} \",le=\"",
                                  bound, "\"} 0"));
  };
  for (const char* bound : {"0.001", "1.0", "2.5", "640.0", "+Inf"})
    EXPECT_TRUE(bucket("vllm:time_to_first_token_seconds", bound)) << bound;
  for (const char* bound : {"1.0", "500000.0", "1e+06", "2e+06"})
    EXPECT_TRUE(bucket("vllm:request_prompt_tokens", bound)) << bound;
}

TEST(MetricsTest, PreemptionsHaveACauseAndAMode) {
  const auto metrics = Metrics::Create("m", 4096);
  EngineStats stats;
  stats.preemptions.Add(PreemptionCause::kNoBlocks, /*swaps=*/true);
  stats.preemptions.Add(PreemptionCause::kPriority, /*swaps=*/false);
  stats.swaps.out_blocks = 7;
  stats.swaps.in_blocks = 5;
  stats.swaps.in_tokens = 80;
  stats.copied_blocks = 4;
  stats.given_back_blocks = 9;
  stats.watermark_refusals = 6;
  stats.swaps.stored_blocks = 4;
  stats.swaps.evicted_blocks = 3;
  stats.swaps.host_hit_tokens = 32;
  stats.swaps.obstacles[static_cast<size_t>(SwapObstacle::kHostFull)] = 1;
  const std::string text = metrics->Serialize(stats);
  const auto count = [&](const std::string& labels, const std::string& name) {
    return absl::StrCat("somnus:", name, "{", labels, "}");
  };
  const std::string engine = "engine=\"0\",", model = "model_name=\"m\"";
  EXPECT_TRUE(Has(
      text, count("cause=\"no_blocks\"," + engine + "mode=\"swap\"," + model, "preemptions_total") + " 1"));
  EXPECT_TRUE(
      Has(text,
          count("cause=\"priority\"," + engine + "mode=\"recompute\"," + model, "preemptions_total") + " 1"));
  EXPECT_TRUE(Has(
      text, count("cause=\"priority\"," + engine + "mode=\"swap\"," + model, "preemptions_total") + " 0"));
  EXPECT_TRUE(Has(text, count("direction=\"out\"," + engine + model, "swapped_blocks_total") + " 7"));
  EXPECT_TRUE(Has(text, count("direction=\"in\"," + engine + model, "swapped_blocks_total") + " 5"));
  EXPECT_TRUE(Has(text, count(engine + model, "swapped_tokens_total") + " 80"));
  EXPECT_TRUE(Has(text, count(engine + model, "copied_blocks_total") + " 4"));
  EXPECT_TRUE(Has(text, count(engine + model, "kv_blocks_given_back_total") + " 9"));
  EXPECT_TRUE(Has(text, count(engine + model, "watermark_refusals_total") + " 6"));
  EXPECT_TRUE(Has(text, count(engine + model, "prefix_cache_host_hits_total") + " 32"));
  EXPECT_TRUE(
      Has(text, count(engine + "event=\"stored\"," + model, "prefix_cache_host_blocks_total") + " 4"));
  EXPECT_TRUE(
      Has(text, count(engine + "event=\"evicted\"," + model, "prefix_cache_host_blocks_total") + " 3"));
  EXPECT_TRUE(Has(text, count(engine + model + ",reason=\"host_full\"", "swaps_declined_total") + " 1"));
}

TEST(MetricsTest, WhatLeavesThePrefixCacheAndWhatIsNotFoundHaveCauses) {
  const auto metrics = Metrics::Create("m", 4096);
  EngineStats stats{.prefix_cache_queries = 30, .prefix_cache_hits = 8};
  stats.prefix_cache_misses.Add(CacheMiss::kNotCached, 18);
  stats.prefix_cache_misses.Add(CacheMiss::kLastToken, 4);
  stats.cached_blocks.stored = 7;
  stats.cached_blocks.lost[static_cast<size_t>(CacheLoss::kEvicted)] = 2;
  stats.cached_blocks.lost[static_cast<size_t>(CacheLoss::kSleep)] = 1;
  const std::string text = metrics->Serialize(stats);
  const std::string engine = "engine=\"0\",model_name=\"m\"";
  EXPECT_TRUE(Has(text, "vllm:prefix_cache_queries_total{" + engine + "} 30"));
  EXPECT_TRUE(Has(text, "vllm:prefix_cache_hits_total{" + engine + "} 8"));
  const auto misses = [&](const std::string& reason) {
    return absl::StrCat("somnus:prefix_cache_misses_total{", engine, ",reason=\"", reason, "\"} ");
  };
  EXPECT_TRUE(Has(text, misses("not_cached") + "18"));
  EXPECT_TRUE(Has(text, misses("last_token") + "4"));
  EXPECT_TRUE(Has(text, misses("salt") + "0"));
  const auto lost = [&](const std::string& cause) {
    return absl::StrCat("somnus:prefix_cache_blocks_lost_total{cause=\"", cause, "\",", engine, "} ");
  };
  EXPECT_TRUE(Has(text, lost("evicted") + "2"));
  EXPECT_TRUE(Has(text, lost("sleep") + "1"));
  EXPECT_TRUE(Has(text, lost("bad_contents") + "0"));
  EXPECT_TRUE(Has(text, "somnus:prefix_cache_blocks_stored_total{" + engine + "} 7"));
  EXPECT_TRUE(Has(text, "somnus:prefix_cache_blocks{" + engine + "} 4"));
}

TEST(MetricsTest, CountersFollowTheEngineAndNeverFall) {
  const auto metrics = Metrics::Create("m", 100);
  EngineStats stats{.generation_tokens = 5};
  metrics->Serialize(stats);
  stats.generation_tokens = 9;
  EXPECT_TRUE(
      Has(metrics->Serialize(stats), "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 9"));
  stats.generation_tokens = 4;
  EXPECT_TRUE(
      Has(metrics->Serialize(stats), "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 9"));
}

TEST(MetricsTest, SpeculationHasVllmsNames) {
  const auto metrics = Metrics::Create("m", 100);
  EngineStats stats, other;
  stats.speculation.AddDraft(4, 2);
  stats.speculation.AddDraft(4, 0);
  other.speculation.AddDraft(3, 3);
  stats.speculation.Add(other.speculation);
  const std::string text = metrics->Serialize(stats), labels = "{engine=\"0\",model_name=\"m\"} ";
  EXPECT_TRUE(Has(text, "vllm:spec_decode_num_drafts_total" + labels + "3"));
  EXPECT_TRUE(Has(text, "vllm:spec_decode_num_draft_tokens_total" + labels + "11"));
  EXPECT_TRUE(Has(text, "vllm:spec_decode_num_accepted_tokens_total" + labels + "5"));
  for (const auto& [position, count] : {std::pair(0, 2), std::pair(1, 2), std::pair(2, 1)}) {
    EXPECT_TRUE(
        Has(text, absl::StrCat("vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name="
                               "\"m\",position=\"",
                               position, "\"} ", count)))
        << text;
  }
}

TEST(MetricsTest, RecoveriesAreCountedAndTimed) {
  const auto metrics = Metrics::Create("m", 100);
  EngineStats stats{.num_recoveries = 2, .group_epoch = 3};
  metrics->OnRecovered(absl::Milliseconds(300));
  metrics->OnRecovered(absl::Seconds(3));
  const std::string text = metrics->Serialize(stats);
  const std::string labels = "{engine=\"0\",model_name=\"m\"} ";
  EXPECT_TRUE(Has(text, "somnus:group_epoch" + labels + "3"));
  EXPECT_TRUE(Has(text, "somnus:recoveries_total" + labels + "2"));
  EXPECT_TRUE(Has(text, "somnus:recovery_seconds_count" + labels + "2"));
  EXPECT_TRUE(Has(text, "somnus:recovery_seconds_bucket{engine=\"0\",model_name=\"m\",le=\"1.0\"} 1"));
}

// The survivors' memory is still released.
TEST(MetricsTest, AnEngineThatRecoversAsleepCountsAsAsleep) {
  const auto metrics = Metrics::Create("m", 100);
  EngineStats stats{.state = EngineState::kRecovering};
  const std::string offloaded =
      "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"weights_offloaded\"} ";
  EXPECT_TRUE(Has(metrics->Serialize(stats), offloaded + "0"));
  stats.sleep_level = 1;
  stats.residency.Slept({.level = 1});
  EXPECT_TRUE(Has(metrics->Serialize(stats), offloaded + "1"));
}

TEST(MetricsTest, OnlyAnAwakeEngineCountsAsAwake) {
  for (const EngineState state : kEngineStates) {
    const auto metrics = Metrics::Create("m", 100);
    const std::string text = metrics->Serialize(EngineStats{.state = state});
    const char* awake = state == EngineState::kAwake ? "1" : "0";
    EXPECT_TRUE(Has(text, absl::StrCat("vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state="
                                       "\"awake\"} ",
                                       awake)))
        << EngineStateName(state);
    for (const EngineState other : kEngineStates) {
      EXPECT_TRUE(Has(text, absl::StrCat("somnus:engine_state{engine=\"0\",model_name=\"m\",state=\"",
                                         EngineStateName(other), "\"} ", other == state ? "1" : "0")));
    }
  }
}

TEST(MetricsTest, SleepStates) {
  const auto metrics = Metrics::Create("m", 100);
  EngineStats stats{.state = EngineState::kAsleep, .sleep_level = 2};
  stats.residency.Slept({.level = 2});
  const std::string text = metrics->Serialize(stats);
  EXPECT_TRUE(Has(text, "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"} 0"));
  EXPECT_TRUE(
      Has(text, "vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"discard_all\"} 1"));
}

TEST(MetricsTest, WeightsThatAreResidentAreNotOffloadedThoughTheCacheSleeps) {
  const auto metrics = Metrics::Create("m", 100);
  EngineStats stats{.state = EngineState::kAsleep, .sleep_level = 1};
  stats.residency.Slept({.level = 1, .tags = {"kv_cache"}});
  const std::string text = metrics->Serialize(stats);
  for (const char* name : {"awake", "weights_offloaded", "discard_all"})
    EXPECT_TRUE(Has(text, absl::StrCat("vllm:engine_sleep_state{engine=\"0\",model_name=\"m\",sleep_state=\"",
                                       name, "\"} 0")))
        << name;
}

// The states that are 1, in the order scheduler, weights, kv_cache, each as "scheduler=paused ".
std::string Components(const EngineStats& stats) {
  const std::string text = Metrics::Create("m", 100)->Serialize(stats);
  std::string active;
  for (const auto& [component, state] :
       std::vector<std::pair<std::string, std::string>>{{"scheduler", "running"},
                                                        {"scheduler", "paused"},
                                                        {"weights", "resident"},
                                                        {"weights", "offloaded"},
                                                        {"weights", "discarded"},
                                                        {"kv_cache", "resident"},
                                                        {"kv_cache", "discarded"}}) {
    const std::string series = absl::StrCat("vllm:engine_sleep_component_state{component=\"", component,
                                            "\",engine=\"0\",model_name=\"m\",state=\"", state, "\"} ");
    EXPECT_TRUE(absl::StrContains(text, series)) << series;
    if (Has(text, series + "1")) absl::StrAppend(&active, component, "=", state, " ");
  }
  return active;
}

TEST(MetricsTest, EachComponentHasAState) {
  EngineStats stats{.state = EngineState::kAwake};
  EXPECT_EQ(Components(stats), "scheduler=running weights=resident kv_cache=resident ");
  stats.state = EngineState::kDraining;
  EXPECT_EQ(Components(stats), "scheduler=running weights=resident kv_cache=resident ");
  stats = {.state = EngineState::kPaused, .paused = true};
  EXPECT_EQ(Components(stats), "scheduler=paused weights=resident kv_cache=resident ");
  stats = {.state = EngineState::kFailed};
  EXPECT_EQ(Components(stats), "weights=resident kv_cache=resident ") << "nothing is computed";
  stats = {.state = EngineState::kAsleep, .sleep_level = 1};
  stats.residency.Slept({.level = 1});
  EXPECT_EQ(Components(stats), "scheduler=paused weights=offloaded kv_cache=discarded ");
  stats.residency.Slept({.level = 2});
  EXPECT_EQ(Components(stats), "scheduler=paused weights=discarded kv_cache=discarded ");
  stats.residency.Woke({"weights"}, /*weights_stale=*/true);
  EXPECT_EQ(Components(stats), "scheduler=paused weights=resident kv_cache=discarded ");
}

TEST(MetricsTest, ASwitchOfModelsIsMeasuredByPhase) {
  const auto metrics = Metrics::Create("m", 100);
  metrics->OnModelSwitch(/*room=*/absl::Seconds(2), /*wake_up=*/absl::Seconds(0.5));
  metrics->OnModelSwitch(/*room=*/absl::Seconds(1), /*wake_up=*/absl::Seconds(0.25));
  const std::string text = metrics->Serialize(EngineStats{.oldest_wait = absl::Seconds(7)});
  const auto sum = [](const std::string& phase) {
    return absl::StrCat("somnus:model_switch_seconds_sum{engine=\"0\",model_name=\"m\",phase=\"", phase,
                        "\"} ");
  };
  EXPECT_TRUE(Has(text, sum("room") + "3"));
  EXPECT_TRUE(Has(text, sum("wake_up") + "0.75"));
  EXPECT_TRUE(Has(text, sum("total") + "3.75"));
  EXPECT_TRUE(Has(text, "somnus:oldest_wait_seconds{engine=\"0\",model_name=\"m\"} 7"));
  EXPECT_TRUE(
      Has(metrics->Serialize(EngineStats()), "somnus:oldest_wait_seconds{engine=\"0\",model_name=\"m\"} 0"));
}

TEST(MetricsTest, TransitionsAreCountedAndMeasured) {
  const auto metrics = Metrics::Create("m", 100);
  TransitionEvent slept{.level = 2, .duration = absl::Seconds(3)};
  slept.report.ranks = {{.rank = 0, .seconds = {.prepare = 1, .release = 0.25}},
                        {.rank = 1, .seconds = {.prepare = 2, .commit = 0.5, .release = 0.125}}};
  metrics->OnTransition(slept);
  TransitionEvent woken{.wakes = true, .duration = absl::Seconds(4)};
  woken.report.ranks = {{.replica = 1,
                         .rank = 2,
                         .tags = {{"weights", {.resident_bytes = 3, .host_bytes = 4}}},
                         .seconds = {.read = 3}}};
  metrics->OnTransition(woken);
  EngineStats stats;
  stats.resident_bytes = {{"weights", 5}, {"kv_cache", 0}};
  stats.num_cache_grows = 3;
  stats.num_cache_shrinks = 4;
  stats.num_auto_sleeps = 2;
  stats.num_auto_wake_ups = 1;
  const std::string text = metrics->Serialize(stats);
  const std::string labels = "{engine=\"0\",";
  const auto has = [&](const std::string& name, const std::string& label, const std::string& value) {
    EXPECT_TRUE(Has(text, absl::StrCat(name, labels, label, "} ", value))) << name << label;
  };
  has("somnus:sleeps_total", "level=\"2\",model_name=\"m\"", "1");
  has("somnus:wake_ups_total", "level=\"0\",model_name=\"m\"", "1");
  has("somnus:sleep_seconds_sum", "model_name=\"m\",phase=\"total\"", "3");
  has("somnus:sleep_seconds_sum", "model_name=\"m\",phase=\"prepare\"", "2");
  has("somnus:sleep_seconds_sum", "model_name=\"m\",phase=\"release\"", "0.25");
  has("somnus:wake_up_seconds_sum", "model_name=\"m\",phase=\"read\"", "3");
  has("somnus:resident_bytes", "model_name=\"m\",tag=\"weights\"", "5");
  has("somnus:resident_bytes", "model_name=\"m\",tag=\"kv_cache\"", "0");
  EXPECT_TRUE(Has(text, "somnus:kv_cache_resizes_total{direction=\"grow\",engine=\"0\",model_name=\"m\"} 3"));
  EXPECT_TRUE(
      Has(text, "somnus:kv_cache_resizes_total{direction=\"shrink\",engine=\"0\",model_name=\"m\"} 4"));
  has("somnus:rank_resident_bytes", "model_name=\"m\",rank=\"2\",replica=\"1\",tag=\"weights\"", "3");
  has("somnus:rank_host_bytes", "model_name=\"m\",rank=\"2\",replica=\"1\",tag=\"weights\"", "4");
  const std::string rank = "model_name=\"m\",rank=\"1\",replica=\"0\",transition=\"sleep\"";
  has("somnus:rank_transition_seconds", rank, "2.5");
  has("somnus:auto_sleeps_total", "model_name=\"m\"", "2");
  has("somnus:auto_wake_ups_total", "model_name=\"m\"", "1");
  has("somnus:requests_rejected_total", "model_name=\"m\",reason=\"asleep\"", "0");
}

TEST(MetricsTest, ChangesOfTheWeightsAreCountedAndMeasured) {
  const std::unique_ptr<Metrics> metrics = Metrics::Create("m", 100);
  metrics->OnWeightsChanged({.updates = false, .duration = absl::Seconds(3)});
  metrics->OnWeightsChanged({.updates = true, .duration = absl::Seconds(1)});
  const std::string text = metrics->Serialize(EngineStats{.weights_version = 3});
  const auto has = [&](const std::string& line) { return text.find(line) != std::string::npos; };
  EXPECT_TRUE(has("somnus:weights_version{engine=\"0\",model_name=\"m\"} 3\n")) << text;
  for (const char* change : {"reload", "update"}) {
    const std::string labels = std::string("{change=\"") + change + "\",engine=\"0\",model_name=\"m\"}";
    EXPECT_TRUE(has("somnus:weights_changes_total" + labels + " 1\n")) << text;
    EXPECT_TRUE(has("somnus:weights_change_seconds_count" + labels + " 1\n")) << text;
  }
}

TEST(MetricsTest, AFinishedRequestFillsItsHistograms) {
  const auto metrics = Metrics::Create("m", 4096);
  EngineRequest request{.prompt = {1, 2, 3}, .arrival = absl::Now()};
  const auto at = [&](double seconds) { return request.arrival + absl::Seconds(seconds); };
  metrics->OnRequestFinished(request, {.reason = FinishReason::kLength,
                                       .num_output_tokens = 5,
                                       .num_cached_tokens = 1,
                                       .num_preemptions = 2,
                                       .moments = {.scheduled = at(1), .first_token = at(2)},
                                       .finished = at(6)});
  metrics->OnSequenceEnd(FinishReason::kStop);
  const std::string text = metrics->Serialize(EngineStats{});
  const std::string labels = "{engine=\"0\",model_name=\"m\"} ";
  EXPECT_TRUE(Has(text, "vllm:request_queue_time_seconds_sum" + labels + "1"));
  EXPECT_TRUE(Has(text, "vllm:request_prefill_time_seconds_sum" + labels + "1"));
  EXPECT_TRUE(Has(text, "vllm:request_decode_time_seconds_sum" + labels + "4"));
  EXPECT_TRUE(Has(text, "vllm:time_to_first_token_seconds_sum" + labels + "2"));
  EXPECT_TRUE(Has(text, "vllm:request_time_per_output_token_seconds_sum" + labels + "1"));
  EXPECT_TRUE(Has(text, "vllm:request_prompt_tokens_sum" + labels + "3"));
  EXPECT_TRUE(Has(text, "vllm:request_prefill_kv_computed_tokens_sum" + labels + "2"));
  EXPECT_TRUE(Has(text, "vllm:request_num_preemptions_sum" + labels + "2"));
  EXPECT_TRUE(
      Has(text, "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"m\"} 1"));
}

TEST(MetricsTest, ARequestThatWasNeverScheduledHasNoPrefillTime) {
  const auto metrics = Metrics::Create("m", 4096);
  EngineRequest request{.arrival = absl::Now()};
  metrics->OnRequestFinished(
      request, {.reason = FinishReason::kAbort, .finished = request.arrival + absl::Seconds(1)});
  const std::string text = metrics->Serialize(EngineStats{});
  EXPECT_TRUE(Has(text, "vllm:e2e_request_latency_seconds_count{engine=\"0\",model_name=\"m\"} 1"));
  EXPECT_TRUE(Has(text, "vllm:request_prefill_time_seconds_count{engine=\"0\",model_name=\"m\"} 0"));
  EXPECT_TRUE(Has(text, "vllm:request_queue_time_seconds_count{engine=\"0\",model_name=\"m\"} 0"));
  EXPECT_TRUE(Has(text, "vllm:request_prefill_kv_computed_tokens_count{engine=\"0\",model_name=\"m\"} 0"));
}

TEST(MetricsTest, TheSourcesOfPromptTokensAddUp) {
  const auto metrics = Metrics::Create("m", 4096);
  EngineStats stats{.prompt_tokens = 100, .forked_prompt_tokens = 10, .prefix_cache_hits = 48};
  stats.swaps.host_hit_tokens = 16;
  stats.swaps.host_query_tokens = 68;
  stats.corrupted_requests = 3;
  const std::string text = metrics->Serialize(stats);
  const auto from = [](const std::string& source) {
    return "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"" + source + "\"} ";
  };
  EXPECT_TRUE(Has(text, from("local_compute") + "42"));
  EXPECT_TRUE(Has(text, from("local_cache_hit") + "42"));
  EXPECT_TRUE(Has(text, from("external_kv_transfer") + "16"));
  const auto cached_in = [](const std::string& tier) {
    return "vllm:prompt_tokens_cached_by_source_total{engine=\"0\",model_name=\"m\",source=\"" + tier +
           "\"} ";
  };
  EXPECT_TRUE(Has(text, cached_in("device") + "42"));
  EXPECT_TRUE(Has(text, cached_in("host") + "16"));
  const std::string labels = "{engine=\"0\",model_name=\"m\"} ";
  EXPECT_TRUE(Has(text, "vllm:prompt_tokens_cached_total" + labels + "58"));
  EXPECT_TRUE(Has(text, "vllm:external_prefix_cache_queries_total" + labels + "68"));
  EXPECT_TRUE(Has(text, "vllm:external_prefix_cache_hits_total" + labels + "16"));
  EXPECT_TRUE(Has(text, "vllm:corrupted_requests_total" + labels + "3"));
}

TEST(MetricsTest, RefusalsOfAFullQueueNameTheBound) {
  const auto metrics = Metrics::Create("m", 100);
  metrics->OnRejected("queue_full", QueueFull(QueueBound::kTokens, "full"));
  metrics->OnRejected("queue_full", absl::ResourceExhaustedError("of something else"));
  const std::string text = metrics->Serialize(EngineStats{});
  const auto bound = [](const std::string& reason) {
    return "vllm:admission_rejections_total{model_name=\"m\",reason=\"" + reason + "\"} ";
  };
  EXPECT_TRUE(Has(text, bound("max_num_queued_tokens") + "1"));
  EXPECT_TRUE(Has(text, bound("max_num_queued_reqs") + "0"));
  EXPECT_TRUE(
      Has(text, "somnus:requests_rejected_total{engine=\"0\",model_name=\"m\",reason=\"queue_full\"} 2"));
}

TEST(MetricsTest, StaysOfBlocksAppearOnceTheyAreMeasured) {
  const auto metrics = Metrics::Create("m", 100);
  EXPECT_EQ(metrics->Serialize(EngineStats{}).find("vllm:kv_block_"), std::string::npos);
  metrics->OnBlocksEvicted({{.lifetime = absl::Seconds(7),
                             .idle = absl::Seconds(2),
                             .reuse_gaps = {absl::Seconds(1), absl::Seconds(3)}}});
  const std::string text = metrics->Serialize(EngineStats{}), labels = "{engine=\"0\",model_name=\"m\"} ";
  EXPECT_TRUE(Has(text, "vllm:kv_block_lifetime_seconds_sum" + labels + "7"));
  EXPECT_TRUE(Has(text, "vllm:kv_block_idle_before_evict_seconds_sum" + labels + "2"));
  EXPECT_TRUE(Has(text, "vllm:kv_block_reuse_gap_seconds_sum" + labels + "4"));
  EXPECT_TRUE(Has(text, "vllm:kv_block_reuse_gap_seconds_count" + labels + "2"));
}

TEST(MetricsTest, OperatorsCallsAreCountedWhileTheyLast) {
  const auto metrics = Metrics::Create("m", 100);
  const std::string in_flight = "vllm:sleep_mode_operations_in_flight{operation=\"wake\"} ";
  EXPECT_TRUE(Has(metrics->Serialize(EngineStats{}), in_flight + "0"));
  metrics->OnSleepOperationBegan("wake");
  EXPECT_TRUE(Has(metrics->Serialize(EngineStats{}), in_flight + "1"));
  metrics->OnSleepOperationEnded("wake", absl::Seconds(2), /*succeeded=*/true);
  const std::string text = metrics->Serialize(EngineStats{});
  EXPECT_TRUE(Has(text, in_flight + "0"));
  for (const char* const prefix : {"vllm:sleep_mode", "vllm:rl_sleep_mode"})
    EXPECT_TRUE(Has(text, absl::StrCat(prefix, "_operation_duration_seconds_sum{operation=\"wake\"} 2")));
  EXPECT_TRUE(Has(text, "vllm:rl_sleep_mode_operations_in_flight{operation=\"wake\"} 0"));
  metrics->OnSleepOperationBegan("wake");
  metrics->OnSleepOperationEnded("wake", absl::Seconds(1), /*succeeded=*/false);
  const std::string later = metrics->Serialize(EngineStats{});
  for (const char* const status : {"success", "error"}) {
    EXPECT_TRUE(Has(later, absl::StrCat("vllm:rl_sleep_mode_operations_total{operation=\"wake\",status=\"",
                                        status, "\"} 1")));
  }
}

TEST(MetricsTest, AnswersWithToolsAreCountedByWhatTheyHold) {
  const auto metrics = Metrics::Create("m", 100);
  metrics->OnAnswerParsed({.streams = true, .has_calls = true, .request_type = "chat_completions"});
  EXPECT_TRUE(Has(metrics->Serialize(EngineStats{}),
                  "vllm:tool_call_parser_invocations_total{mode=\"streaming\",model_name=\"m\",outcome="
                  "\"tool_call\",request_type=\"chat_completions\"} 1"));
}

TEST(MetricsTest, TheLoadOfExpertsIsTheSumOverStepsAndRanks) {
  const auto metrics = Metrics::Create("m", 100);
  EXPECT_FALSE(absl::StrContains(metrics->Serialize(EngineStats{}), "somnus:expert_"));
  const std::vector<int32_t> layers = {1, 3};
  const std::vector<uint32_t> first = {1, 2, 3, 3}, second = {0, 3, 3, 3};
  metrics->OnExpertLoad({layers, 0, 2, first});
  metrics->OnExpertLoad({layers, 2, 2, second});
  const auto count = [](int layer, int expert) {
    return absl::StrCat("somnus:expert_tokens_total{engine=\"0\",expert=\"", expert, "\",layer=\"", layer,
                        "\",model_name=\"m\"} ");
  };
  const std::string imbalance = "somnus:expert_load_imbalance{engine=\"0\",model_name=\"m\"} ";
  std::string text = metrics->Serialize(EngineStats{});
  EXPECT_TRUE(Has(text, count(1, 1) + "2"));
  EXPECT_TRUE(Has(text, count(1, 2) + "0"));
  EXPECT_TRUE(Has(text, count(3, 3) + "3"));
  EXPECT_TRUE(Has(text, imbalance + "2")) << "3 of the 6 tokens of layer 1 went to one of four experts";
  metrics->OnExpertLoad({layers, 0, 2, first});
  text = metrics->Serialize(EngineStats{});
  EXPECT_TRUE(Has(text, count(1, 1) + "4"));
  EXPECT_TRUE(Has(text, count(3, 3) + "3"));
  EXPECT_TRUE(Has(metrics->Serialize(EngineStats{}), count(1, 1) + "4")) << "each step counts once";
  metrics->OnExpertLoad({layers, 0, 3, first});
  metrics->OnExpertLoad({layers, -1, 2, first});
  metrics->OnExpertLoad({layers, 1 << 30, 2, first});
  EXPECT_TRUE(Has(metrics->Serialize(EngineStats{}), count(1, 1) + "4")) << "numbers that do not fit";
}

TEST(MetricsTest, GrammarsAreMeasured) {
  const auto metrics = Metrics::Create("m", 100);
  metrics->OnGrammarCompiled(absl::Seconds(2));
  StepEvent step;
  metrics->OnStep(step);
  step.masks = absl::Milliseconds(500);
  metrics->OnStep(step);
  metrics->UpdateGrammars({.entries = 3, .bytes = 4096, .hits = 5, .misses = 4, .refused = 1});
  const std::string text = metrics->Serialize(EngineStats{}), labels = "{engine=\"0\",model_name=\"m\"} ";
  EXPECT_TRUE(Has(text, "somnus:grammar_compile_seconds_sum" + labels + "2"));
  EXPECT_TRUE(Has(text, "somnus:grammar_mask_seconds_sum" + labels + "0.5"));
  EXPECT_TRUE(Has(text, "somnus:grammar_mask_seconds_count" + labels + "1"));
  EXPECT_TRUE(Has(text, "somnus:grammars_cached" + labels + "3"));
  EXPECT_TRUE(Has(text, "somnus:grammar_cache_bytes" + labels + "4096"));
  EXPECT_TRUE(Has(text, "somnus:grammars_refused_total" + labels + "1"));
  EXPECT_TRUE(Has(text, "somnus:grammar_lookups_total{engine=\"0\",model_name=\"m\",result=\"hit\"} 5"));
}

TEST(MetricsTest, TheProcessIsThereUnderPrometheusNames) {
  const auto metrics = Metrics::Create("m", 100);
  const std::string text = metrics->Serialize(EngineStats{});
  for (const char* name : {"process_resident_memory_bytes", "process_virtual_memory_bytes",
                           "process_start_time_seconds", "process_open_fds", "process_max_fds"}) {
    EXPECT_TRUE(Has(text, absl::StrCat("# TYPE ", name, " gauge"))) << name;
  }
  EXPECT_TRUE(Has(text, "# TYPE process_cpu_seconds_total counter"));
}

}  // namespace
}  // namespace somnus
