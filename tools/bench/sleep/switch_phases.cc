#include "tools/bench/sleep/switch_phases.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "tools/bench/median.h"

namespace somnus {
namespace {

constexpr char kOther[] = "other";
// Longer than a model that has woken stays, so that no switch waits for that.
constexpr absl::Duration kStay = absl::Seconds(2);

// Sums since the start, in seconds.
struct Totals {
  double until_awake = 0, sleeps = 0, wake_ups = 0;
};

absl::StatusOr<Totals> ReadTotals(const ServedEngine& engine) {
  Totals totals;
  ASSIGN_OR_RETURN(totals.until_awake, engine.Metric("somnus:model_switch_seconds_sum", "phase=\"total\""));
  ASSIGN_OR_RETURN(totals.sleeps, engine.Metric("somnus:sleep_seconds_sum", "phase=\"total\""));
  ASSIGN_OR_RETURN(totals.wake_ups, engine.Metric("somnus:wake_up_seconds_sum", "phase=\"total\""));
  return totals;
}

}  // namespace

absl::Status MeasureSwitches(const ServedEngineOptions& options, const SwitchFloors& floors, int turns,
                             PhaseTable* table) {
  const int num_switches = 2 * turns;
  const std::string section = absl::StrCat("two models, memory for one, ", options.workers,
                                           options.workers == 1 ? " worker" : " workers");
  ServedEngineOptions two = options;
  two.flags.push_back(absl::StrCat("--model=", kOther, "=", options.model));
  two.flags.push_back(absl::StrCat("--device-memory-budget=", floors.model_bytes * 5 / 4));
  two.flags.push_back("--no-elastic-kv-cache");  // or both would stay awake
  ASSIGN_OR_RETURN(const std::unique_ptr<ServedEngine> engine, ServedEngine::Start(two));
  // The first sleep of each model copies the weights, which is a separate phase.
  for (const char* const model : {kOther, ""}) {
    absl::SleepFor(kStay);
    RETURN_IF_ERROR(engine->FirstToken(model).status());
  }
  ASSIGN_OR_RETURN(const Totals before, ReadTotals(*engine));
  std::vector<double> first_tokens;
  for (int i = 0; i < num_switches; ++i) {
    absl::SleepFor(kStay);
    ASSIGN_OR_RETURN(first_tokens.emplace_back(), engine->FirstToken(i % 2 == 0 ? kOther : ""));
  }
  ASSIGN_OR_RETURN(const Totals after, ReadTotals(*engine));
  const double until_awake = (after.until_awake - before.until_awake) / num_switches;
  const double sleep = (after.sleeps - before.sleeps) / num_switches;
  const double wake_up = (after.wake_ups - before.wake_ups) / num_switches;
  table->Add(section, "request to first token, with a switch", floors.model_bytes, Median(first_tokens),
             floors.seconds + floors.undisturbed);
  table->Add(section, "request until its model is awake", floors.model_bytes, until_awake, floors.seconds);
  table->Add(section, "of it the other model's sleep", 0, sleep);
  table->Add(section, "of it the wake-up", 0, wake_up);
  table->Add(section, "of it decisions", 0, until_awake - sleep - wake_up);
  return absl::OkStatus();
}

}  // namespace somnus
