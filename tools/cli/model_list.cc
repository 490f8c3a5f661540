#include "tools/cli/model_list.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/bytes_text.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"

namespace somnus::cli {
namespace {

Style StyleOf(v1::EngineState state) {
  if (state == v1::ENGINE_STATE_AWAKE) return Style::kGreen;
  return state == v1::ENGINE_STATE_FAILED ? Style::kRed : Style::kYellow;
}

std::string StateCell(const v1::ModelStatus& model) {
  std::string text = StateName(model.state());
  if (model.sleep_level() > 0) absl::StrAppend(&text, " (level ", model.sleep_level(), ")");
  if (model.paused() && model.state() != v1::ENGINE_STATE_PAUSED) absl::StrAppend(&text, ", paused");
  return text;
}

std::string WaitCell(const v1::ModelStatus& model) {
  return model.oldest_wait_s() > 0 ? absl::StrFormat("%.1f s", model.oldest_wait_s()) : "-";
}

std::string BlocksCell(const v1::ModelStatus& model) {
  if (model.total_blocks() == 0) return "-";
  return absl::StrFormat("%.0f%%",
                         100.0 * (model.total_blocks() - model.free_blocks()) / model.total_blocks());
}

std::string MappedCell(const v1::ModelStatus& model) {
  return model.max_blocks() == 0 ? "-" : absl::StrCat(model.mapped_blocks(), "/", model.max_blocks());
}

// "an operator has called sleep; somnus wake-up --model=chat": why a request would not be served now, and the
// way out.
std::string NotReadyText(const v1::ModelStatus& model) {
  const v1::StateReport& report = model.state_report();
  if (model.not_ready_reason().empty() || report.why().empty()) return model.not_ready_reason();
  return absl::StrCat(report.why(), "; ", report.way_out());
}

// The model's settings beside other models, and its errors.
std::string NotesCell(const v1::ModelStatus& model) {
  std::vector<std::string> notes;
  if (model.pinned()) notes.push_back("pinned");
  if (model.priority() != 0) notes.push_back(absl::StrCat("priority ", model.priority()));
  const auto add_time = [&notes](const char* name, double seconds) {
    if (seconds > 0) notes.push_back(absl::StrCat(name, " ", absl::FormatDuration(absl::Seconds(seconds))));
  };
  add_time("ttft", model.ttft_target_s());
  add_time("tpot", model.tpot_target_s());
  const std::string problem = model.error().empty() ? NotReadyText(model) : model.error();
  if (!problem.empty()) notes.push_back(Printable(problem));
  return absl::StrJoin(notes, ", ");
}

// Tokens in each second since `before`; "-" where not known.
std::string RateCell(int64_t tokens, const int64_t* before, absl::Duration passed) {
  if (before == nullptr || passed <= absl::ZeroDuration() || tokens < *before) return "-";
  return absl::StrFormat("%.1f", static_cast<double>(tokens - *before) / absl::ToDoubleSeconds(passed));
}

using Row = TextTable::Row;

int64_t Sum(const google::protobuf::Map<std::string, int64_t>& by_cause) {
  int64_t sum = 0;
  for (const auto& [cause, count] : by_cause) sum += count;
  return sum;
}

int64_t Preemptions(const v1::SchedulingCounters& counters) {
  return Sum(counters.preemptions_by_swap()) + Sum(counters.preemptions_by_recompute());
}

// "no_blocks (swap) 3, priority (recompute) 1": preemptions since `then`, by cause.
std::string CausesCell(const v1::SchedulingCounters& now, const v1::SchedulingCounters& then) {
  std::map<std::string, int64_t> causes;
  const auto add = [&causes](const auto& by_cause, const char* mode, int sign) {
    for (const auto& [cause, count] : by_cause) causes[absl::StrCat(cause, " (", mode, ")")] += sign * count;
  };
  add(now.preemptions_by_swap(), "swap", 1);
  add(now.preemptions_by_recompute(), "recompute", 1);
  add(then.preemptions_by_swap(), "swap", -1);
  add(then.preemptions_by_recompute(), "recompute", -1);
  std::vector<std::string> parts;
  for (const auto& [cause, count] : causes) {
    if (count > 0) parts.push_back(absl::StrCat(Printable(cause), " ", count));
  }
  return absl::StrJoin(parts, ", ");
}

std::string ShareCell(int64_t part, int64_t whole) {
  return whole > 0 ? absl::StrFormat("%.0f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole))
                   : "-";
}

Row SchedulingRow(const v1::ModelStatus& model, const v1::ModelStatus& before, absl::Duration passed) {
  const v1::SchedulingCounters &now = model.scheduling(), &then = before.scheduling();
  const v1::TokenLatencies &latency = model.latency(), &earlier = before.latency();
  const auto rate = [passed](int64_t now, int64_t then) { return RateCell(now, &then, passed); };
  const int64_t begun = now.first_scheduled() - then.first_scheduled();
  return {Printable(model.model()),
          rate(Preemptions(now), Preemptions(then)),
          rate(now.swapped_out_blocks(), then.swapped_out_blocks()),
          rate(now.swapped_in_blocks(), then.swapped_in_blocks()),
          rate(now.copied_blocks(), then.copied_blocks()),
          rate(now.watermark_refusals(), then.watermark_refusals()),
          ShareCell(now.prefix_cache_hits() - then.prefix_cache_hits(),
                    now.prefix_cache_queries() - then.prefix_cache_queries()),
          begun > 0 ? absl::StrFormat("%.3f s", (now.queue_s() - then.queue_s()) / begun) : "-",
          MeanWait(latency.num_first_tokens() - earlier.num_first_tokens(),
                   latency.first_token_s() - earlier.first_token_s()),
          MeanWait(latency.num_further_tokens() - earlier.num_further_tokens(),
                   latency.further_token_s() - earlier.further_token_s()),
          ShareCell(now.accepted_draft_tokens() - then.accepted_draft_tokens(),
                    now.draft_tokens() - then.draft_tokens()),
          CausesCell(now, then)};
}

nlohmann::ordered_json LatencyJson(const v1::TokenLatencies& latency) {
  return {{"num_first_tokens", latency.num_first_tokens()},
          {"first_token_s", latency.first_token_s()},
          {"num_further_tokens", latency.num_further_tokens()},
          {"further_token_s", latency.further_token_s()}};
}

// The report as `somnus status --json` prints reports; null while requests are served.
nlohmann::ordered_json ReportJson(const v1::StateReport& report) {
  if (report.line().empty()) return nullptr;
  return {{"line", report.line()},
          {"what", report.what()},
          {"why", report.why()},
          {"since_unix_s", report.since_unix_s()},
          {"way_out", report.way_out()}};
}

}  // namespace

std::string StateName(v1::EngineState state) {
  return absl::AsciiStrToLower(v1::EngineState_Name(state).substr(sizeof("ENGINE_STATE_") - 1));
}

std::string StateText(v1::EngineState state) {
  return Styled(STDOUT_FILENO, StyleOf(state), StateName(state));
}

std::string MeanWait(int64_t count, double seconds) {
  if (count <= 0 || seconds < 0) return "-";
  const double mean = seconds / static_cast<double>(count);
  return mean < 1 ? absl::StrFormat("%.0fms", 1000 * mean) : absl::StrFormat("%.1fs", mean);
}

std::string ModelTable(const v1::ListModelStatusResponse& models, int columns,
                       const v1::ListModelStatusResponse* before, absl::Duration passed) {
  std::map<std::string, const v1::ModelStatus*> earlier;
  if (before != nullptr) {
    for (const v1::ModelStatus& model : before->models()) earlier[model.model()] = &model;
  }
  Row titles = {"model", "state", "memory", "host", "running", "waiting", "oldest", "blocks", "mapped"};
  if (before != nullptr) titles.insert(titles.end(), {"prompt/s", "output/s"});
  titles.push_back("");
  TextTable table(std::move(titles), 2);
  for (const v1::ModelStatus& model : models.models()) {
    Row row = {Printable(model.model()),
               StateCell(model),
               BytesText(model.resident_bytes()),
               BytesText(model.host_bytes()),
               absl::StrCat(model.num_requests_running()),
               absl::StrCat(model.num_requests_waiting()),
               WaitCell(model),
               BlocksCell(model),
               MappedCell(model)};
    if (before != nullptr) {
      const auto found = earlier.find(model.model());
      const v1::ModelStatus* then = found == earlier.end() ? nullptr : found->second;
      const int64_t prompt = then == nullptr ? 0 : then->prompt_tokens();
      const int64_t output = then == nullptr ? 0 : then->generation_tokens();
      row.push_back(RateCell(model.prompt_tokens(), then == nullptr ? nullptr : &prompt, passed));
      row.push_back(RateCell(model.generation_tokens(), then == nullptr ? nullptr : &output, passed));
    }
    row.push_back(NotesCell(model));
    table.Add(std::move(row), StyleOf(model.state()));
  }
  return table.Text(columns);
}

std::string SchedulingTable(const v1::ListModelStatusResponse& models,
                            const v1::ListModelStatusResponse& before, absl::Duration passed, int columns) {
  std::map<std::string, v1::ModelStatus> earlier;
  for (const v1::ModelStatus& model : before.models()) earlier[model.model()] = model;
  TextTable table({"model", "preempted/s", "out/s", "in/s", "copied/s", "refused/s", "cached", "queue",
                   "TTFT", "TPOT", "guessed", ""},
                  1);
  for (const v1::ModelStatus& model : models.models())
    table.Add(SchedulingRow(model, earlier[model.model()], passed));
  return table.Text(columns);
}

std::string ModelsJson(const v1::ListModelStatusResponse& models) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const v1::ModelStatus& model : models.models()) {
    list.push_back({{"model", model.model()},
                    {"state", StateName(model.state())},
                    {"sleep_level", model.sleep_level()},
                    {"paused", model.paused()},
                    {"error", model.error()},
                    {"not_ready_reason", model.not_ready_reason()},
                    {"state_report", ReportJson(model.state_report())},
                    {"num_requests_running", model.num_requests_running()},
                    {"num_requests_waiting", model.num_requests_waiting()},
                    {"oldest_wait_s", model.oldest_wait_s()},
                    {"resident_bytes", model.resident_bytes()},
                    {"host_bytes", model.host_bytes()},
                    {"total_blocks", model.total_blocks()},
                    {"free_blocks", model.free_blocks()},
                    {"mapped_blocks", model.mapped_blocks()},
                    {"max_blocks", model.max_blocks()},
                    {"prompt_tokens", model.prompt_tokens()},
                    {"generation_tokens", model.generation_tokens()},
                    {"latency", LatencyJson(model.latency())},
                    {"pinned", model.pinned()},
                    {"priority", model.priority()},
                    {"ttft_target_s", model.ttft_target_s()},
                    {"tpot_target_s", model.tpot_target_s()},
                    {"decode_step_s", model.decode_step_s()}});
  }
  const nlohmann::ordered_json whole = {{"models", std::move(list)}};
  return whole.dump(1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

bool AnyFailed(const v1::ListModelStatusResponse& models) {
  return std::any_of(models.models().begin(), models.models().end(),
                     [](const v1::ModelStatus& model) { return model.state() == v1::ENGINE_STATE_FAILED; });
}

}  // namespace somnus::cli
