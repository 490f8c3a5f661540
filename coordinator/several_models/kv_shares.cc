#include "coordinator/several_models/kv_shares.h"

#include <algorithm>
#include <cmath>

namespace somnus {
namespace {

using State = KvShareView::State;

class Planner {
 public:
  Planner(const KvShareOptions& options, MonotonicTime now, int64_t free_bytes,
          const std::vector<KvShareView>& models)
      : options_(options), now_(now), models_(models), free_(free_bytes), shares_(models.size(), 0) {
    plan_.served.assign(models.size(), false);
  }

  KvSharesPlan Run() {
    ChooseSharers();
    ShareOut();
    std::vector<int> lacking;
    int64_t missing = -free_;
    for (const int i : sharers_) {
      if (!Lacks(i)) continue;
      lacking.push_back(i);
      missing += Wanted(i);
    }
    if (lacking.empty()) return std::move(plan_);
    // Models that are to wake come first: their requests get no token before the wake-up.
    std::stable_partition(lacking.begin(), lacking.end(), [&](int i) { return Waits(i); });
    Shrink(missing, lacking.front());
    for (const int i : lacking) Grow(i);
    return std::move(plan_);
  }

 private:
  bool Waits(int i) const { return models_[i].state == State::kWaiter; }
  int64_t Bytes(int i, int64_t blocks) const { return blocks * models_[i].block_bytes; }

  // The blocks that the model's open requests need, and headroom.
  int32_t Demand(int i) const {
    const KvShareView& model = models_[i];
    const double wanted = std::ceil(model.needed_blocks * (1 + options_.headroom));
    const double bounded = std::min(wanted, static_cast<double>(model.max_blocks));
    return std::clamp(static_cast<int32_t>(bounded), model.min_blocks, model.max_blocks);
  }
  int32_t Step(int i) const { return std::max(1, models_[i].max_blocks / options_.steps); }

  // Chooses the models among which memory is shared: all models that are awake, and the waiters that would
  // get their minimum beside the minimum of all models before.
  void ChooseSharers() {
    total_ = free_;
    int64_t left = free_;
    std::vector<int> waiters;
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      if (Waits(i)) waiters.push_back(i);
      if (models_[i].state != State::kAwake) continue;
      sharers_.push_back(i);
      total_ += Bytes(i, models_[i].mapped_blocks);
      left += Bytes(i, models_[i].mapped_blocks - std::min(models_[i].mapped_blocks, models_[i].min_blocks));
    }
    for (const int i : waiters) {
      const int64_t least = models_[i].other_bytes + Bytes(i, models_[i].min_blocks);
      if (least > left) {
        // Other models have to sleep for this waiter: the less memory the waiter takes, the sooner there is
        // room.
        if (models_[i].mapped_blocks > models_[i].min_blocks && !Stays(i))
          plan_.resizes.push_back({i, models_[i].min_blocks, i});
        continue;
      }
      left -= least;
      total_ -= models_[i].other_bytes;
      sharers_.push_back(i);
      plan_.served[i] = true;
    }
  }

  // Every sharer has its minimum. Beyond the minimum, the sharers that want least get all that they want, and
  // the other sharers get equal shares.
  void ShareOut() {
    int64_t left = total_;
    std::vector<int> open;
    for (const int i : sharers_) {
      shares_[i] = models_[i].min_blocks;
      left -= Bytes(i, shares_[i]);
      open.push_back(i);
    }
    const auto wants = [&](int i) { return Bytes(i, Demand(i) - shares_[i]); };
    std::stable_sort(open.begin(), open.end(), [&](int a, int b) { return wants(a) < wants(b); });
    for (size_t k = 0; k < open.size() && left > 0; ++k) {
      const int i = open[k];
      const int64_t even = left / static_cast<int64_t>(open.size() - k) / models_[i].block_bytes;
      const int64_t more = std::min<int64_t>(Demand(i) - shares_[i], even);
      shares_[i] += static_cast<int32_t>(more);
      left -= Bytes(i, more);
    }
  }

  bool Lacks(int i) const {
    const KvShareView& model = models_[i];
    if (Waits(i)) return true;
    const bool is_full = model.needed_blocks >= options_.full * model.mapped_blocks;
    const bool worth_it = shares_[i] - model.mapped_blocks >= Step(i) || shares_[i] == model.max_blocks;
    return is_full && worth_it && shares_[i] > model.mapped_blocks;
  }
  // An upper bound of the bytes that `more` blocks take.
  int64_t GrowthBytes(int i, int64_t more) const {
    return std::min(Bytes(i, more) + models_[i].slack_bytes, models_[i].rest_bytes);
  }
  // Bytes beyond the bytes that the model holds.
  int64_t Wanted(int i) const {
    if (!Waits(i)) return GrowthBytes(i, shares_[i] - models_[i].mapped_blocks);
    return models_[i].other_bytes + Bytes(i, shares_[i]);
  }

  bool Stays(int i) {
    const MonotonicTime until = models_[i].resized_at + options_.min_stay;
    if (now_ >= until) return false;
    plan_.look_again_at = std::min(plan_.look_again_at, until);
    return true;
  }

  // Takes the missing bytes from the models that have more than their share, the least recently used first.
  void Shrink(int64_t missing, int for_model) {
    std::vector<int> donors = sharers_;
    std::erase_if(donors,
                  [&](int i) { return Waits(i) || models_[i].mapped_blocks <= shares_[i] || Stays(i); });
    std::stable_sort(donors.begin(), donors.end(),
                     [&](int a, int b) { return models_[a].last_used < models_[b].last_used; });
    for (const int i : donors) {
      if (missing <= 0) return;
      const int32_t mapped = models_[i].mapped_blocks;
      const int64_t needed = (missing + models_[i].block_bytes - 1) / models_[i].block_bytes;
      const int64_t taken = std::min<int64_t>(std::max<int64_t>(needed, Step(i)), mapped - shares_[i]);
      missing -= Bytes(i, taken);
      plan_.resizes.push_back({i, mapped - static_cast<int32_t>(taken), for_model});
    }
  }

  // A waiter gets the size of its cache while the waiter sleeps, which takes no memory unless the cache is
  // mapped. A waiter that can wake with the present size does so.
  void Grow(int i) {
    const KvShareView& model = models_[i];
    if (Waits(i)) {
      const int64_t as_it_is = model.other_bytes + Bytes(i, model.mapped_blocks);
      const bool fits = as_it_is <= free_;
      const int32_t more = shares_[i] - model.mapped_blocks;
      const bool has_room = more < 0 || !model.is_mapped || GrowthBytes(i, more) <= free_;
      if (!fits && has_room && (more < 0 || more >= Step(i)) && !Stays(i))
        plan_.resizes.push_back({i, shares_[i], i});
      free_ -= fits ? as_it_is : Wanted(i);
      return;
    }
    const int64_t room = std::max<int64_t>(0, free_ - model.slack_bytes) / model.block_bytes;
    const int64_t wanted = shares_[i] - model.mapped_blocks;
    const int64_t more = GrowthBytes(i, wanted) <= free_ ? wanted : std::min(wanted, room);
    const bool worth_it = more >= Step(i) || model.mapped_blocks + more == shares_[i];
    if (more <= 0 || !worth_it || Stays(i)) return;
    free_ -= GrowthBytes(i, more);
    plan_.resizes.push_back({i, model.mapped_blocks + static_cast<int32_t>(more), i});
  }

  const KvShareOptions& options_;
  const MonotonicTime now_;
  const std::vector<KvShareView>& models_;
  int64_t free_;
  int64_t total_ = 0;         // the bytes that sharers hold and the free bytes, without other_bytes
  std::vector<int> sharers_;  // awake models before waiters
  std::vector<int32_t> shares_;
  KvSharesPlan plan_;
};

}  // namespace

const char* KvResizeReasonName(KvResizeReason reason) {
  switch (reason) {
    case KvResizeReason::kCacheFull:
      return "cache_full";
    case KvResizeReason::kOthersLack:
      return "others_lack";
    case KvResizeReason::kRequestsWait:
      return "requests_wait";
  }
  return "unknown";
}

KvSharesPlan PlanKvShares(const KvShareOptions& options, MonotonicTime now, int64_t free_bytes,
                          const std::vector<KvShareView>& models) {
  return Planner(options, now, free_bytes, models).Run();
}

}  // namespace somnus
