#pragma once
// How long the reply to a step is waited for before the step counts as hung.
//
// A hang is found by progress: a step may take kMultiple times what steps of its size have taken lately.
// Steps are compared within a size class, which is a power of two of tokens: so a decode is not measured by
// prefills, which take a hundred times as long, nor a prefill by decodes. A class counts by the slowest of
// its last steps (one to two times kWindow of them): the time of a step varies with the length of its
// contexts, which is not looked at, and with the machine's other work.
//
// The deadline is never below a floor, --hang-timeout and at least kLowestFloor: on a machine with many more
// threads than CPUs a process can stand still for about a second without any fault, twice when its peer does
// so after it. Nor is it ever above the step timeout, which also holds for a size class without any history.
//
// The first step after the start, a recovery or a wake-up may capture graphs or touch memory for the first
// time, and is no measure for others. After a recovery or a wake-up a size class has kAllowance more than
// before, until another of its steps was observed: so a deadline that was too short costs one recovery, and
// the step is tried again with more time; and a request whose step hangs again and again does not cost the
// step timeout each time.
//
// A value without a clock; not thread safe.

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace somnus {

class StepDeadline {
 public:
  static constexpr int kMultiple = 20;
  static constexpr int kWindow = 64;  // steps
  static constexpr absl::Duration kLowestFloor = absl::Seconds(2);
  static constexpr absl::Duration kAllowance = absl::Minutes(1);

  StepDeadline(absl::Duration hang_timeout, absl::Duration step_timeout);

  // The time for a step of that many tokens, from when all steps before it have been replied to.
  absl::Duration Timeout(int32_t num_tokens) const;
  // A step has been replied to, `duration` after it was sent, or after the reply before it if that was later.
  void Observe(int32_t num_tokens, absl::Duration duration);
  // The next step is the first one of an epoch, or the first after a wake-up.
  void Restart();

 private:
  struct SizeClass;
  absl::Duration Deadline(const SizeClass& size) const;

  struct SizeClass {
    bool known = false;           // a step was observed
    int num_steps = 0;            // in the newer part of the window
    absl::Duration newer, older;  // the slowest step of each part
    // The deadline before the last Restart; infinite: no step had been observed.
    absl::Duration last_deadline = absl::InfiniteDuration();
  };

  absl::Duration floor_;
  absl::Duration step_timeout_;
  bool first_ = true;
  std::array<SizeClass, 33> classes_;  // by the number of bits of the number of tokens
};

}  // namespace somnus
