#pragma once
// The cost of scheduling and encoding a step in which every running sequence decodes one token, with the
// coordinator's own Scheduler. The workers' replies are made up.

#include <cstdint>

namespace somnus {

struct DecodeStepOptions {
  int32_t sequences = 1024;
  int32_t context = 4096;  // tokens of each sequence when the measurement begins
  int32_t waiting = 0;     // further sequences, without a slot
  // Prompts with slots, each as long as a step's budget: each step computes the first prompt beside the
  // decodes, and passes over the rest; there are more prompts than steps.
  int32_t long_prompts = 0;
  int32_t spare_blocks = 0;  // beyond the sequences' need
  int32_t users = 0;         // who share fairly, request by request in turns; 0: users are not told apart
  int32_t steps = 200;
};

// Microseconds of a step, medians over the steps.
struct DecodeStepTimes {
  double schedule = 0;
  double encode = 0;  // into the bytes of the step message
  double both = 0;    // the median of the sums
  double least = 0;   // of the sums: free of the time that other processes on the machine add
  double most = 0;
  double update = 0;          // the reply, applied
  int64_t message_bytes = 0;  // of the last step
  int64_t num_blocks = 0;
};

DecodeStepTimes MeasureDecodeSteps(const DecodeStepOptions& options);

}  // namespace somnus
