#include "tools/bench/sleep/backup_phases.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/bench/median.h"

namespace somnus {
namespace {

constexpr int kFirstTokens = 5;

struct Kind {
  std::string name;
  std::vector<std::string> flags;
};

absl::StatusOr<double> UndisturbedFirstToken(ServedEngine* engine) {
  std::vector<double> seconds;
  for (int i = 0; i < kFirstTokens; ++i) {
    ASSIGN_OR_RETURN(seconds.emplace_back(), engine->FirstToken());
  }
  return Median(seconds);
}

absl::Status MeasureBackup(ServedEngineOptions options, const Kind& kind, PhaseTable* table) {
  const std::string section = absl::StrCat("engine, backup ", kind.name);
  options.flags.insert(options.flags.end(), kind.flags.begin(), kind.flags.end());
  ASSIGN_OR_RETURN(const std::unique_ptr<ServedEngine> engine, ServedEngine::Start(options));
  ASSIGN_OR_RETURN(const double undisturbed, UndisturbedFirstToken(engine.get()));
  ASSIGN_OR_RETURN(const MeasuredTransition first_sleep, engine->Sleep(1));
  ASSIGN_OR_RETURN(const MeasuredTransition first_wake, engine->WakeUp());
  ASSIGN_OR_RETURN(const int64_t awake, engine->WorkersPss());
  ASSIGN_OR_RETURN(const MeasuredTransition slept, engine->Sleep(1));
  ASSIGN_OR_RETURN(const int64_t asleep, engine->WorkersPss());
  ASSIGN_OR_RETURN(const MeasuredTransition woken, engine->WakeUp());
  ASSIGN_OR_RETURN(const double first_token, engine->FirstToken());
  table->Add(section, "cold start", 0, engine->cold_start_seconds());
  table->Add(section, "first token, never slept", 0, undisturbed);
  table->Add(section, "first sleep", 0, first_sleep.seconds);
  table->Add(section, "first wake-up", 0, first_wake.seconds);
  table->Add(section, "second sleep", 0, slept.seconds);
  table->Add(section, "second sleep: release", 0, slept.release);
  table->Add(section, "second sleep: beside the ranks", 0, slept.seconds - slept.prepare - slept.commit);
  table->Add(section, "wake-up", 0, woken.seconds);
  table->Add(section, "wake-up: copy", 0, woken.copy);
  table->Add(section, "wake-up: read", 0, woken.read);
  table->Add(section, "first token after it", 0, first_token, undisturbed);
  table->AddQuantity(section, "held by the workers awake", "MB", 1e-6 * static_cast<double>(awake));
  table->AddQuantity(section, "held by the workers asleep", "MB", 1e-6 * static_cast<double>(asleep));
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureBackups(const ServedEngineOptions& options, const std::string& spill_dir,
                            PhaseTable* table) {
  const bool is_chosen = std::any_of(options.flags.begin(), options.flags.end(), [](const std::string& flag) {
    return absl::StartsWith(flag, "--backup") || absl::StartsWith(flag, "--spill-dir");
  });
  if (is_chosen) return absl::OkStatus();
  std::vector<Kind> kinds;
  for (const char* name : {"retain", "release", "file", "compress"})
    kinds.push_back({name, {absl::StrCat("--backup=", name)}});
  if (!spill_dir.empty())
    kinds.push_back({"file, --spill-dir", {"--backup=file", absl::StrCat("--spill-dir=", spill_dir)}});
  for (const Kind& kind : kinds) RETURN_IF_ERROR(MeasureBackup(options, kind, table));
  return absl::OkStatus();
}

}  // namespace somnus
