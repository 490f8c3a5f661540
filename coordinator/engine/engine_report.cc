#include "coordinator/engine/engine_report.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/memory_tags.h"
#include "coordinator/residency/wake_retries.h"

namespace somnus {
namespace {

constexpr char kEndsByItself[] = "it ends by itself";

// `command` of the command line, for this model.
std::string Somnus(const EngineStats& stats, const char* command) {
  const std::string model = stats.model_flag.empty() ? "" : absl::StrCat(" --model=", stats.model_flag);
  return absl::StrCat("somnus ", command, model);
}

std::string BringWeights(const EngineStats& stats) {
  return absl::StrCat(Somnus(stats, "reload-weights"), ", or an update");
}

// "at level 1 (kv_cache, weights)"; without tags where the weights are stale.
std::string Depth(const EngineStats& stats) {
  const std::string tags = absl::StrJoin(stats.residency.asleep(), ", ");
  return absl::StrCat(" at level ", stats.sleep_level, tags.empty() ? "" : absl::StrCat(" (", tags, ")"));
}

bool WeightsChange(const EngineStats& stats) {
  return stats.lifecycle_call.name == "update_weights" || stats.lifecycle_call.name == "reload_weights";
}

StateReport OfFailure(const EngineStats& stats) {
  return {.what = "The engine has failed.",
          .why = stats.error,
          .way_out = stats.may_revive ? absl::StrCat(Somnus(stats, "revive"), " starts new workers")
                                      : "only a restart of the server brings it back"};
}

StateReport OfAwake(const EngineStats& stats) {
  if (stats.stall.ok()) return {};
  if (stats.call_stalls) {
    return {.what = std::string(stats.stall.message()),
            .why = stats.lifecycle_call.steps_go_on ? "the workers read files, while steps are computed"
                                                    : "no step is computed meanwhile",
            .way_out = absl::StrCat(kEndsByItself, "; ", Somnus(stats, "abort-call"), " ends it")};
  }
  return {.what = absl::StrCat(absl::StripSuffix(stats.stall.message(), "."), "."),
          .why = "a worker does not get on with a step",
          .way_out =
              "it ends by itself, at --step-timeout at the latest: the reply comes, or the worker is "
              "replaced"};
}

// The engine lacks weights, and only an update or a reload can bring weights.
StateReport OfMissingWeights(const EngineStats& stats) {
  StateReport report = {.why = stats.note.why, .way_out = BringWeights(stats)};
  if (stats.gave_up_stale_weights) {
    report.what = kStaleForTooLong;
  } else if (stats.residency.weights_stale()) {
    report.what = "The weights are stale; requests wait until others have been brought.";
  } else {
    report.what =
        "The weights came from an update and were discarded; requests wait until others have been brought.";
  }
  return report;
}

// Weights that have a backup may be read from the checkpoint instead; weights without a backup may have to
// come from other files.
std::string AfterFailedWakeUp(const EngineStats& stats) {
  const std::string again = absl::StrCat(Somnus(stats, "wake-up"), " once the reason is gone; ");
  if (stats.residency.state(kWeightsTag) == TagState::kDiscarded) {
    return absl::StrCat(again, Somnus(stats, "wake-up --no-load-weights"), " and then ",
                        Somnus(stats, "reload-weights"), " take other files");
  }
  return absl::StrCat(again, "after ", Somnus(stats, "sleep --level 2"), " it reads the checkpoint");
}

StateReport OfAsleep(const EngineStats& stats) {
  if (stats.gave_up_stale_weights || stats.needs_weights || stats.residency.weights_stale())
    return OfMissingWeights(stats);
  StateReport report = {.why = stats.note.why, .way_out = Somnus(stats, "wake-up")};
  if (!stats.wake_up_error.empty()) {
    report.what = "The engine is asleep, and could not be woken.";
    report.why = std::string(absl::StripPrefix(stats.wake_up_error, kCouldNotBeWoken));
    report.way_out = AfterFailedWakeUp(stats);
  } else if (!stats.awaits_room_of.empty()) {
    report.what = absl::StrCat("The engine is asleep", Depth(stats), "; requests wait until there is room.");
    report.why = absl::StrCat("the memory is held by ", stats.awaits_room_of);
    report.way_out = absl::StrCat(kEndsByItself,
                                  " when its turn comes; somnus sleep --model=NAME of another "
                                  "model makes room at once");
  } else if (stats.request_wakes) {
    report.what = absl::StrCat("The engine is asleep", Depth(stats), "; a request wakes it.");
    report.way_out = absl::StrCat("a request, or ", Somnus(stats, "wake-up"));
  } else {
    report.what = absl::StrCat("The engine is asleep", Depth(stats), "; requests wait until it is woken.");
  }
  return report;
}

StateReport OfWaking(const EngineStats& stats) {
  const std::string gives_up = absl::StrCat(kEndsByItself, "; ", Somnus(stats, "abort-call"), " gives it up");
  if (WeightsChange(stats)) {
    return {.what = "The weights are being replaced; requests wait until all workers have others.",
            .why = stats.note.why,
            .way_out = gives_up};
  }
  return {.what = WhyNotReady(EngineState::kWaking), .why = stats.note.why, .way_out = gives_up};
}

StateReport OfState(const EngineStats& stats) {
  StateReport report = {.what = WhyNotReady(stats.state), .why = stats.note.why};
  switch (stats.state) {
    case EngineState::kAwake:
      return OfAwake(stats);
    case EngineState::kFailed:
      return OfFailure(stats);
    case EngineState::kAsleep:
      return OfAsleep(stats);
    case EngineState::kWaking:
      return OfWaking(stats);
    case EngineState::kLoading:
      report.way_out = kEndsByItself;
      return report;
    case EngineState::kFallingAsleep:
      report.way_out = absl::StrCat(kEndsByItself, "; ", Somnus(stats, "abort-call"), " undoes it");
      return report;
    case EngineState::kRecovering:
      report.way_out = absl::StrCat(
          kEndsByItself, "; where workers run elsewhere, another one in the place of the lost one");
      return report;
    case EngineState::kDraining:
      report.way_out = "another start of the server";
      return report;
    case EngineState::kPausing:
      report.way_out = absl::StrCat(kEndsByItself, " when open requests have ended; ",
                                    Somnus(stats, "resume"), " undoes it");
      return report;
    case EngineState::kPaused:
      report.way_out = Somnus(stats, "resume");
      return report;
  }
  return report;
}

}  // namespace

StateReport ReportState(const EngineStats& stats) {
  StateReport report = OfState(stats);
  if (report.serving()) return report;
  if (report.why.empty()) report.why = "the server itself has decided so";
  report.since = stats.state == EngineState::kAwake ? stats.stalled_since : stats.note.since;
  return report;
}

}  // namespace somnus
