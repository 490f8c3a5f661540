#include "tools/bench/sleep/backup_phases.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

absl::Status MeasureBackup(ServedEngineOptions options, const std::string& backup, PhaseTable* table) {
  const std::string section = absl::StrCat("engine, backup ", backup);
  options.flags.push_back(absl::StrCat("--backup=", backup));
  ASSIGN_OR_RETURN(const std::unique_ptr<ServedEngine> engine, ServedEngine::Start(options));
  RETURN_IF_ERROR(engine->Sleep(1).status());
  RETURN_IF_ERROR(engine->WakeUp().status());
  ASSIGN_OR_RETURN(const int64_t awake, engine->WorkersPss());
  ASSIGN_OR_RETURN(const MeasuredTransition slept, engine->Sleep(1));
  ASSIGN_OR_RETURN(const int64_t asleep, engine->WorkersPss());
  ASSIGN_OR_RETURN(const MeasuredTransition woken, engine->WakeUp());
  ASSIGN_OR_RETURN(const double first_token, engine->FirstToken());
  table->Add(section, "sleep", 0, slept.seconds);
  table->Add(section, "wake-up", 0, woken.seconds);
  table->Add(section, "wake-up: copy", 0, woken.copy);
  table->Add(section, "wake-up: read", 0, woken.read);
  table->Add(section, "first token after it", 0, first_token);
  table->AddQuantity(section, "held by the workers awake", "MB", 1e-6 * static_cast<double>(awake));
  table->AddQuantity(section, "held by the workers asleep", "MB", 1e-6 * static_cast<double>(asleep));
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureBackups(const ServedEngineOptions& options, PhaseTable* table) {
  const bool is_chosen = std::any_of(options.flags.begin(), options.flags.end(), [](const std::string& flag) {
    return absl::StartsWith(flag, "--backup") || absl::StartsWith(flag, "--spill-dir");
  });
  if (is_chosen) return absl::OkStatus();
  for (const char* backup : {"retain", "release", "file"})
    RETURN_IF_ERROR(MeasureBackup(options, backup, table));
  return absl::OkStatus();
}

}  // namespace somnus
