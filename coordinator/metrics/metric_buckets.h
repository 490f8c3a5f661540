#pragma once
// The buckets of histograms, in seconds or counts. Internal to coordinator/metrics.

#include <cstdint>
#include <vector>

namespace somnus {

using Buckets = std::vector<double>;

inline const Buckets kTtftBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                     1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
inline const Buckets kItlBuckets = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                    .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
inline const Buckets kRequestBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
inline const Buckets kIterationBuckets = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
// A small model is faster than vLLM's first buckets tell apart.
inline const Buckets kFineBuckets = {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05,
                                     .1,    .2,    .5,    1,    2,    5,    10,  30};
inline const Buckets kRecoveryBuckets = {.1, .2, .5, 1, 2, 5, 10, 20, 60, 120, 300, 600};
inline const Buckets kTransitionBuckets = {.001, .005, .01, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 120, 600};
inline const Buckets kMaskBuckets = {.00001, .00002, .00005, .0001, .0002, .0005,
                                     .001,   .002,   .005,   .01,   .1,    1};
// Buckets as in vLLM.
inline const Buckets kSleepOperationBuckets = {.01, .1, 1, 10, 30, 60, 120, 300, 600};
inline const Buckets kBlockStayBuckets = {.001, .002, .005, .01, .02, .05, .1,  .2,  .5,   1,   2,
                                          5,    10,   20,   30,  60,  120, 300, 600, 1200, 1800};
inline const Buckets kPreemptionBuckets = {1, 2, 3, 4, 5, 10, 20};
inline const Buckets kHttpBuckets = {.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 600};

// 1, 2, 5, 10, 20, 50, ... up to `max`.
inline Buckets OneTwoFive(int64_t max) {
  Buckets buckets;
  for (double decade = 1; decade <= static_cast<double>(max); decade *= 10) {
    for (const double digit : {1, 2, 5}) {
      if (digit * decade <= static_cast<double>(max)) buckets.push_back(digit * decade);
    }
  }
  if (buckets.empty()) buckets.push_back(1);
  return buckets;
}

}  // namespace somnus
