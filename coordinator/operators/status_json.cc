#include "coordinator/operators/status_json.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/clock.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/http/api_error.h"
#include "coordinator/metrics/latency_sums.h"
#include "coordinator/metrics/step_trace.h"
#include "proto/control.pb.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kEventHistory = absl::Hours(1);
constexpr size_t kMaxEvents = 100;

double Seconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

template <typename Map>
Json BytesJson(const Map& bytes_by_tag) {
  Json json = Json::object();
  const std::map<std::string, int64_t> in_order(bytes_by_tag.begin(), bytes_by_tag.end());
  for (const auto& [tag, bytes] : in_order) json[tag] = bytes;
  return json;
}

Json CallJson(const LifecycleCallStats& call) {
  if (call.name.empty()) return nullptr;
  return {{"name", call.name},
          {"client", call.client},
          {"running_s", Seconds(MonotonicNow() - call.began)},
          {"num_waiting", call.num_waiting}};
}

Json LatencyJson(const ServedModel& model) {
  const Latencies sums = model.latencies == nullptr ? Latencies() : model.latencies->Sums();
  return {{"num_first_tokens", sums.num_first_tokens},
          {"first_token_s", Seconds(sums.first_tokens)},
          {"num_further_tokens", sums.num_further_tokens},
          {"further_token_s", Seconds(sums.further_tokens)}};
}

Json TransitionJson(const v1::RankStatus& rank) {
  if (!rank.has_transition()) return nullptr;
  const v1::TransitionProgress& progress = rank.transition();
  return {{"wakes_up", progress.wakes_up()},
          {"phase", progress.phase()},
          {"bytes_done", progress.bytes_done()},
          {"bytes_total", progress.bytes_total()},
          {"seconds", progress.seconds()}};
}

Json RanksJson(const ServedModel& model) {
  Json ranks = Json::array();
  if (!model.rank_status) return ranks;
  for (const v1::RankStatus& rank : model.rank_status()) ranks.push_back(RankStatusJson(rank));
  return ranks;
}

Json ReplicasJson(const EngineStats& stats) {
  Json replicas = Json::array();
  for (size_t i = 0; i < stats.replicas.size(); ++i) {
    const ReplicaStats& replica = stats.replicas[i];
    replicas.push_back({{"replica", i},
                        {"state", EngineStateName(replica.state)},
                        {"error", CleanMessage(replica.error)},
                        {"num_requests_running", replica.num_running},
                        {"num_requests_waiting", replica.num_waiting},
                        {"num_requests", replica.num_requests},
                        {"num_recoveries", replica.num_recoveries},
                        {"group_epoch", replica.group_epoch}});
  }
  return replicas;
}

Json BlocksJson(const EngineStats& stats) {
  return {{"block_size", stats.block_size},
          {"mapped_blocks", stats.mapped_blocks},
          {"max_blocks", stats.max_blocks},
          {"pinned_blocks", stats.pinned_blocks},
          {"total_host_blocks", stats.total_host_blocks},
          {"used_host_blocks", stats.used_host_blocks}};
}

Json EventsJson(const ServedModel& model) {
  Json events = Json::array();
  if (model.trace == nullptr) return events;
  const MonotonicTime now = MonotonicNow();
  const std::vector<TraceSpan> spans = model.trace->LastSpans(kEventHistory, kMaxEvents);
  for (const TraceSpan& span : spans)
    events.push_back({{"name", span.name},
                      {"ago_s", Seconds(now - span.begin - span.duration)},
                      {"seconds", Seconds(span.duration)}});
  return events;
}

Json KvMapsJson(const EngineViews& views) {
  Json maps = Json::array();
  for (const auto& view : views) {
    if (view->replica == kCommonQueue) continue;
    maps.push_back({{"replica", view->replica},
                    {"age_s", Seconds(MonotonicNow() - view->taken)},
                    {"blocks_per_cell", view->blocks_per_cell},
                    {"cells", view->blocks}});
  }
  return maps;
}

Json RequestJson(const RequestView& request, int32_t replica, absl::Time now) {
  return {{"replica", replica == kCommonQueue ? Json(nullptr) : Json(replica)},
          {"request_id", request.id},
          {"state", request.state},
          {"num_prompt_tokens", request.num_prompt_tokens},
          {"num_computed_tokens", request.num_computed_tokens},
          {"num_output_tokens", request.num_output_tokens},
          {"num_blocks", request.num_blocks},
          {"num_preemptions", request.num_preemptions},
          {"age_s", Seconds(now - request.arrival)}};
}

// The first requests of each replica in turn, then those of the common queue; in all as many as a picture of
// one replica may have.
Json RequestsJson(const EngineViews& views) {
  Json requests = Json::array();
  const absl::Time now = absl::Now();
  const size_t most = views.empty() ? 0 : static_cast<size_t>(views.front()->max_requests);
  for (const bool in_queue : {false, true}) {
    for (size_t i = 0; i < most && requests.size() < most; ++i) {
      for (const auto& view : views) {
        const bool is_turn = in_queue == (view->replica == kCommonQueue);
        if (is_turn && i < view->requests.size() && requests.size() < most)
          requests.push_back(RequestJson(view->requests[i], view->replica, now));
      }
    }
  }
  return requests;
}

}  // namespace

Json RankStatusJson(const v1::RankStatus& rank) {
  return {{"replica", rank.replica()},
          {"rank", rank.rank()},
          {"host", rank.host()},
          {"pid", rank.pid()},
          {"device", rank.device()},
          {"numa", rank.numa()},
          {"state", rank.state()},
          {"sleep_level", rank.sleep_level()},
          {"weights_version", rank.weights_version()},
          {"error", CleanMessage(rank.error())},
          {"bytes_by_tag", BytesJson(rank.bytes_by_tag())},
          {"host_bytes_by_tag", BytesJson(rank.host_bytes_by_tag())},
          {"file_bytes_by_tag", BytesJson(rank.file_bytes_by_tag())},
          {"graph_bytes", rank.graph_bytes()},
          {"rss_bytes", rank.rss_bytes()},
          {"transition", TransitionJson(rank)}};
}

Json StateReportJson(const StateReport& report) {
  if (report.serving()) return nullptr;
  return {{"line", CleanMessage(report.Line())},
          {"what", CleanMessage(report.what)},
          {"why", CleanMessage(report.why)},
          {"since_unix_s", absl::ToUnixSeconds(report.since)},
          {"way_out", report.way_out}};
}

Json ModelStatusJson(const ServedModel& model) {
  const EngineStats stats = model.engine->Stats();
  return {{"model", model.name},
          {"state", EngineStateName(stats.state)},
          {"sleep_level", stats.sleep_level},
          {"paused", stats.paused},
          {"error", CleanMessage(stats.error.empty() ? stats.wake_up_error : stats.error)},
          {"state_report", StateReportJson(ReportState(stats))},
          {"lifecycle_call", CallJson(stats.lifecycle_call)},
          {"num_requests_running", stats.num_running},
          {"num_requests_waiting", stats.num_waiting},
          {"oldest_wait_s", Seconds(stats.oldest_wait)},
          {"num_preemptions", stats.num_preemptions},
          {"total_blocks", stats.total_blocks},
          {"free_blocks", stats.free_blocks},
          {"resident_bytes_by_tag", BytesJson(stats.resident_bytes)},
          {"host_bytes_by_tag", BytesJson(stats.host_bytes)},
          {"prompt_tokens", stats.prompt_tokens},
          {"generation_tokens", stats.generation_tokens},
          {"num_steps", stats.num_steps},
          {"prefix_cache_queries", stats.prefix_cache_queries},
          {"prefix_cache_hits", stats.prefix_cache_hits},
          {"latency", LatencyJson(model)}};
}

Json ModelDetailJson(const ServedModel& model) {
  Json ranks = RanksJson(model);
  const EngineStats stats = model.engine->Stats();
  const EngineViews views = model.engine->View();
  return {{"model", model.name},
          {"weights_version", stats.weights_version},
          {"group_epoch", stats.group_epoch},
          {"num_recoveries", stats.num_recoveries},
          {"num_requests_moved", stats.num_moved},
          {"blocks", BlocksJson(stats)},
          {"ranks", std::move(ranks)},
          {"replicas", ReplicasJson(stats)},
          {"kv_maps", KvMapsJson(views)},
          {"requests", RequestsJson(views)},
          {"events", EventsJson(model)}};
}

}  // namespace somnus
