#pragma once
// Splits a range of bytes over a few short-lived threads. For work of milliseconds: page faults and large
// copies.

#include <cstdint>
#include <functional>

namespace somnus {

// Calls work(begin, end) for disjoint parts that cover [0, bytes), cut at multiples of `align`, on at most
// `num_threads` threads, of which the caller is one. There are more parts than threads, so that the threads
// end together even if a thread gets little of its CPU. Small ranges are not split. Returns when all are
// done.
void ParallelRanges(int64_t bytes, int64_t align, int num_threads,
                    const std::function<void(int64_t, int64_t)>& work);

}  // namespace somnus
