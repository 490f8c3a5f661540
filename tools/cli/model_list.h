#pragma once
// The models of a server as tables and as JSON, for the commands models, status and top.

#include <string>

#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace somnus::cli {

std::string StateName(v1::EngineState state);  // "awake"
std::string StateText(v1::EngineState state);  // the same in its colour
// The mean of so many waits between two looks, as "25ms" or "1.2s"; "-": there were none.
std::string MeanWait(int64_t count, double seconds);

// A line for each model, below a line of titles, or paragraphs where the lines are wider than `columns`. With
// `before`, the response of `passed` ago, also the tokens that each model has computed per second since.
std::string ModelTable(const v1::ListModelStatusResponse& models, int columns,
                       const v1::ListModelStatusResponse* before = nullptr, absl::Duration passed = {});
// The schedulers' work since `before`, which was asked for `passed` ago: shares and mean times in that
// period, and numbers for each second.
std::string SchedulingTable(const v1::ListModelStatusResponse& models,
                            const v1::ListModelStatusResponse& before, absl::Duration passed, int columns);
// {"models": [{"model": "chat", "state": "awake", ...}]}
std::string ModelsJson(const v1::ListModelStatusResponse& models);

bool AnyFailed(const v1::ListModelStatusResponse& models);

}  // namespace somnus::cli
