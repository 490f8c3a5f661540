#include "coordinator/state_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/http/api_error.h"

namespace somnus {
namespace {

// A step that hangs changes no state.
constexpr absl::Duration kInterval = absl::Milliseconds(500);

LogLevel LevelOf(const EngineStats& stats) {
  if (stats.state == EngineState::kFailed) return LogLevel::kError;
  if (stats.state == EngineState::kAwake || !stats.wake_up_error.empty()) return LogLevel::kWarning;
  return stats.request_wakes ? LogLevel::kDebug : LogLevel::kInfo;
}

}  // namespace

StateLog::StateLog(std::function<StateReport()> starting)
    : starting_(std::move(starting)), thread_([this] { Run(); }) {}

void StateLog::SetModels(const std::vector<ServedModel>& models) {
  absl::MutexLock lock(&mu_);
  for (const ServedModel& model : models) {
    const std::string prefix = models.size() > 1 ? absl::StrCat(model.name, ": ") : "";
    entries_.push_back({.prefix = prefix, .engine = model.engine, .seen = ""});
  }
}

StateLog::~StateLog() {
  stop_.Stop();
  mail_.Wake();
  thread_.join();
}

void StateLog::Run() {
  bool ends = false;
  while (!ends) {
    mail_.WaitFor(kInterval);
    ends = stop_.stopped();  // the last look finds that the server ends
    absl::MutexLock lock(&mu_);
    for (Entry& entry : entries_) Look(&entry);
    if (entries_.empty() && !ends) LookAtStart();
  }
}

// Two looks apart: most starts are quick, and need no line.
void StateLog::LookAtStart() {
  const std::string line = CleanMessage(starting_().Line());
  const bool stands = line == std::exchange(start_seen_, line);
  if (!stands || line == start_logged_) return;
  start_logged_ = line;
  LogInfo("{}", line);
}

void StateLog::Look(Entry* entry) {
  const EngineStats stats = entry->engine->Stats();
  const StateReport report = ReportState(stats);
  const std::string line = CleanMessage(report.Line());
  if (line == entry->seen) return;
  entry->seen = line;
  if (report.serving()) {
    if (std::exchange(entry->logged, false)) LogInfo("{}The engine serves.", entry->prefix);
    return;
  }
  const LogLevel level = LevelOf(stats);
  entry->logged |= level != LogLevel::kDebug;
  Log(level, "{}{}", fmt::make_format_args(entry->prefix, line));
}

}  // namespace somnus
