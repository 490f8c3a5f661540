#pragma once
// Samples of decode_bench, and the printed report.

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace somnus {

// `batch` sequences at once, each with a prompt and tokens that are decoded behind the prompt.
struct Workload {
  int32_t batch = 1;
  int32_t prompt_tokens = 0;
  int32_t new_tokens = 0;  // 0: the prompts alone
};

// The prompts or the decode steps of one run.
struct Speed {
  double ours = 0;     // tokens per second
  double peer = 0;     // 0: no peer
  double step_ms = 0;  // of a decode step, or of all prompts
  double of_read = 0;  // read rate of weights and KV cache, relative to memory's speed around the run; decode
                       // only
  double of_peak = 0;  // of the arithmetic peak of the type that is multiplied
};

struct RunSample {
  Speed prefill;
  Speed decode;          // of new_tokens > 0
  double read_gbps = 0;  // memory's speed around the run
  bool dropped = false;  // the distance of the two cores changed meanwhile
};

// "  decode   batch  4 prompt   128  ...": for the log of a run.
std::string SpeedText(const Workload& load, bool is_prefill, const Speed& speed);

// The head and a row of the table: medians with ranges over the samples that were not dropped.
std::string TableHead();
// The same row as numbers, for --json: {"kind": "decode" or "prefill", "batch", ..., lists of a number for
// each sample}.
nlohmann::json Summary(const Workload& load, bool is_prefill, const std::vector<RunSample>& samples);
std::string TableRow(const nlohmann::json& summary);

}  // namespace somnus
