#include "coordinator/grpc/gateway/load_report.h"

#include <algorithm>
#include <limits>

namespace somnus::gateway {
namespace {

constexpr absl::Duration kLeastInterval = absl::Seconds(1);

int32_t Bounded(int64_t number) {
  return static_cast<int32_t>(std::clamp<int64_t>(number, 0, std::numeric_limits<int32_t>::max()));
}

double Ratio(int64_t part, int64_t whole) {
  return whole <= 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

int32_t UsedTokens(const EngineStats& stats) {
  return Bounded(int64_t{stats.used_blocks} * stats.block_size);
}
int32_t MaxTokens(const EngineStats& stats) {
  return Bounded(int64_t{stats.total_blocks} * stats.block_size);
}

}  // namespace

double RateMeter::Look(int64_t counter, MonotonicTime now) {
  absl::MutexLock lock(&mutex_);
  if (begun_ && now - time_ < kLeastInterval) return rate_;
  if (begun_)
    rate_ = std::max(0.0, static_cast<double>(counter - counter_) / absl::ToDoubleSeconds(now - time_));
  begun_ = true;
  counter_ = counter;
  time_ = now;
  return rate_;
}

void FillLoad(const EngineStats& stats, int32_t max_num_seqs, double rate, wire::SchedulerLoad* load) {
  load->set_num_running_reqs(stats.num_running);
  load->set_num_waiting_reqs(stats.num_waiting);
  load->set_num_total_reqs(stats.num_running + stats.num_waiting);
  load->set_num_used_tokens(UsedTokens(stats));
  load->set_max_total_num_tokens(MaxTokens(stats));
  load->set_token_usage(Ratio(stats.used_blocks, stats.total_blocks));
  load->set_gen_throughput(rate);
  load->set_cache_hit_rate(Ratio(stats.prefix_cache_hits, stats.prefix_cache_queries));
  load->set_utilization(Ratio(stats.num_running, max_num_seqs));
  load->set_max_running_requests(max_num_seqs);
  load->set_num_waiting_uncached_tokens(Bounded(stats.waiting_tokens));
}

void FillLoad(const EngineStats& stats, int32_t max_num_seqs, double rate, common::EngineLoad* load) {
  load->set_running_requests(static_cast<uint32_t>(stats.num_running));
  load->set_waiting_requests(static_cast<uint32_t>(stats.num_waiting));
  load->set_waiting_uncached_tokens(static_cast<uint32_t>(Bounded(stats.waiting_tokens)));
  // Blocks that the prefix cache alone holds count as free.
  const double usage = Ratio(stats.used_blocks, stats.total_blocks);
  load->set_token_usage(usage);
  load->set_active_token_usage(usage);
  load->set_gen_throughput(rate);
  load->set_max_running_requests(static_cast<uint32_t>(max_num_seqs));
  load->set_cache_hit_rate(Ratio(stats.prefix_cache_hits, stats.prefix_cache_queries));
  load->set_num_used_tokens(UsedTokens(stats));
  load->set_max_total_num_tokens(MaxTokens(stats));
}

}  // namespace somnus::gateway
