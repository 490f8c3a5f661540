#include "coordinator/operators/trace_route.h"

#include <array>
#include <numeric>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kDefaultSeconds = 10, kMaxSeconds = 3600;
constexpr int kProcess = 1;
constexpr int kLifecycleRow = 0;  // the replicas' steps are below
int RowOf(int32_t replica) { return replica + 1; }
constexpr size_t kFirstObstacle = 1;  // 0 stands for none

Json Complete(const std::string& name, int row, MonotonicTime begin, absl::Duration duration) {
  return {{"name", name},
          {"ph", "X"},
          {"pid", kProcess},
          {"tid", row},
          {"ts", absl::ToDoubleMicroseconds(begin)},
          {"dur", absl::ToDoubleMicroseconds(duration)}};
}

Json NameOf(const char* what, int row, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", row}, {"args", {{"name", name}}}};
}

const char* KindOf(const StepEvent& step) {
  if (step.num_sequences == 0) return "free";
  if (step.num_decodes == step.num_sequences) return "decode";
  return step.num_decodes == 0 ? "prefill" : "mixed";
}

// The counts that are not 0, by name.
template <size_t n>
Json Named(const std::array<const char*, n>& names, const std::array<int32_t, n>& counts, size_t first = 0) {
  Json json = Json::object();
  for (size_t i = first; i < n; ++i) {
    if (counts[i] != 0) json[names[i]] = counts[i];
  }
  return json;
}

int32_t Sum(const std::array<int32_t, kPreemptionCauses.size()>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0);
}

Json StepJson(const StepEvent& step) {
  Json event = Complete(KindOf(step), RowOf(step.replica), step.replied - step.duration, step.duration);
  event["args"] = {{"step_id", step.step_id},
                   {"group_epoch", step.group_epoch},
                   {"tokens", step.num_tokens},
                   {"sequences", step.num_sequences},
                   {"decodes", step.num_decodes},
                   {"draft_tokens", step.num_draft_tokens},
                   {"accepted_draft_tokens", step.num_accepted_tokens},
                   {"new_sequences", step.num_new},
                   {"forks", step.num_forks},
                   {"copied_blocks", step.num_copies},
                   {"swapped_out_blocks", step.num_swap_outs},
                   {"swapped_in_blocks", step.num_swap_ins},
                   {"preempted", Sum(step.preempted_by_swap) + Sum(step.preempted_by_recompute)},
                   {"preempted_by_swap", Named(kPreemptionCauses, step.preempted_by_swap)},
                   {"preempted_by_recompute", Named(kPreemptionCauses, step.preempted_by_recompute)},
                   {"swaps_declined", Named(kSwapObstacles, step.swap_obstacles, kFirstObstacle)},
                   {"watermark_refusals", step.num_watermark_refusals},
                   {"cached_tokens", step.num_cached_tokens},
                   {"running", step.num_running},
                   {"waiting", step.num_waiting},
                   {"used_blocks", step.used_blocks},
                   {"schedule_us", absl::ToDoubleMicroseconds(step.schedule)},
                   {"queued_us", absl::ToDoubleMicroseconds(step.replied - step.duration - step.sent)}};
  return event;
}

}  // namespace

nlohmann::ordered_json TraceJson(const std::string& model, const Trace& trace) {
  Json events = Json::array();
  events.push_back(NameOf("process_name", kLifecycleRow, model));
  events.push_back(NameOf("thread_name", kLifecycleRow, "lifecycle"));
  std::set<int32_t> replicas;
  for (const StepEvent& step : trace.steps) replicas.insert(step.replica);
  for (const int32_t replica : replicas)
    events.push_back(NameOf("thread_name", RowOf(replica), absl::StrCat("steps of replica ", replica)));
  for (const TraceSpan& span : trace.spans)
    events.push_back(Complete(span.name, kLifecycleRow, span.begin, span.duration));
  for (const StepEvent& step : trace.steps) events.push_back(StepJson(step));
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

HttpResponse TraceResponse(const ServedModel& model, const LifecycleParameters& parameters) {
  double seconds = kDefaultSeconds;
  if (const auto values = parameters.Values("seconds"); !values.empty()) {
    const bool is_valid = absl::SimpleAtod(values.back(), &seconds) && seconds > 0 && seconds <= kMaxSeconds;
    if (!is_valid)
      return ErrorResponse(
          BadRequest("seconds", absl::StrCat("seconds must be above 0 and at most ", kMaxSeconds)));
  }
  if (model.trace == nullptr) return JsonResponse(TraceJson(model.name, {}));
  return JsonResponse(TraceJson(model.name, model.trace->Last(absl::Seconds(seconds))));
}

}  // namespace somnus
