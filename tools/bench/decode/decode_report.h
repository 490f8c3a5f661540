#pragma once
// Samples of decode_bench, and what it prints of them.

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace somnus {

// `batch` sequences at once, each of a prompt and of tokens that are decoded behind it.
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
  double of_read = 0;  // bytes of weights and KV cache, of what memory gave around the run; decode only
  double of_peak = 0;  // of the arithmetic peak of the type that is multiplied
};

struct RunSample {
  Speed prefill;
  Speed decode;          // of new_tokens > 0
  double read_gbps = 0;  // what memory gave around the run
  bool dropped = false;  // the distance of the two cores changed meanwhile
};

// "  decode   batch  4 prompt   128  ...": for the log of a run.
std::string SpeedText(const Workload& load, bool is_prefill, const Speed& speed);

// The head of the table, and a row of it: medians with ranges over the samples that were not dropped.
std::string TableHead();
// The same as numbers, as --json has them: {"kind": "decode" or "prefill", "batch", ..., lists of a number
// for each sample}.
nlohmann::json Summary(const Workload& load, bool is_prefill, const std::vector<RunSample>& samples);
std::string TableRow(const nlohmann::json& summary);

}  // namespace somnus
