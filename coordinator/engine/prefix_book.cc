#include "coordinator/engine/prefix_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/null_block.h"
#include "base/status_macros.h"

namespace somnus {

PrefixBook::PrefixBook(const PinLimits& limits, const SchedulerOptions& options, std::function<void()> wake)
    : limits_(limits),
      block_size_(options.blocks.block_size),
      max_model_len_(options.max_model_len),
      longest_blocks_(BlocksOfLongest(options)),
      has_prefix_cache_(options.blocks.enable_prefix_caching),
      wake_(std::move(wake)),
      total_blocks_(static_cast<int32_t>(TotalBlocks(options.blocks.num_blocks))) {}

std::deque<PrefixBook::Entry>::iterator PrefixBook::Find(const std::string& id) {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const Entry& entry) { return entry.prefix.id == id; });
}

absl::Status PrefixBook::CheckRoom(int64_t num_blocks) const {
  const auto share = static_cast<int64_t>(limits_.max_share * total_blocks_);
  const int64_t allowed = std::max<int64_t>(0, std::min<int64_t>(share, total_blocks_ - longest_blocks_));
  if (num_blocks_ + num_blocks > allowed) {
    const std::string message = absl::StrCat(num_blocks, " blocks cannot be pinned: ", num_blocks_,
                                             " are, and of the ", total_blocks_, " of the KV cache ", allowed,
                                             " may be (--max-pinned-prefix-share, and one sequence of ",
                                             max_model_len_, " tokens must have room beside them)");
    return num_blocks > allowed ? absl::InvalidArgumentError(message) : absl::ResourceExhaustedError(message);
  }
  if (static_cast<int32_t>(entries_.size()) >= limits_.max_prefixes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(entries_.size(), " prefixes are pinned, and no more may be (--max-pinned-prefixes)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PinnedPrefix> PrefixBook::Pin(const PrefixRequest& request) {
  if (!has_prefix_cache_)
    return absl::InvalidArgumentError("nothing can be pinned without --enable-prefix-caching");
  const int64_t num_blocks = static_cast<int64_t>(request.prompt.size()) / block_size_;
  if (num_blocks == 0) {
    return absl::InvalidArgumentError(absl::StrCat("The prompt has ", request.prompt.size(),
                                                   " tokens, and only blocks of ", block_size_,
                                                   " can be pinned"));
  }
  const absl::Span<const int32_t> tokens =
      absl::MakeConstSpan(request.prompt).first(static_cast<size_t>(num_blocks * block_size_));
  PinnedPrefix pinned;
  {
    absl::MutexLock lock(&mu_);
    const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.salt == request.cache_salt && absl::MakeConstSpan(entry.tokens) == tokens;
    });
    if (same != entries_.end()) {
      ++same->num_callers;
      return same->prefix;
    }
    if (Find(request.id) != entries_.end())
      return absl::InvalidArgumentError(absl::StrCat("the id ", request.id, " is in use"));
    RETURN_IF_ERROR(CheckRoom(num_blocks));
    Entry& entry = entries_.emplace_back();
    entry.prefix = {request.id, request.created, static_cast<int32_t>(tokens.size()),
                    static_cast<int32_t>(num_blocks), 0};
    entry.tokens.assign(tokens.begin(), tokens.end());
    entry.salt = request.cache_salt;
    num_blocks_ += num_blocks;
    changes_.push_back({request.id, PrefixPin{request.id, entry.tokens, entry.salt}});
    pinned = entry.prefix;
  }
  wake_();
  return pinned;
}

void PrefixBook::Erase(std::deque<Entry>::iterator entry) {
  num_blocks_ -= entry->prefix.num_blocks;
  changes_.push_back({entry->prefix.id, std::nullopt});
  entries_.erase(entry);
}

void PrefixBook::Withdraw(const std::string& id) {
  {
    absl::MutexLock lock(&mu_);
    const auto entry = Find(id);
    if (entry == entries_.end() || --entry->num_callers > 0) return;
    Erase(entry);
  }
  wake_();
}

absl::Status PrefixBook::Unpin(const std::string& id) {
  {
    absl::MutexLock lock(&mu_);
    const auto entry = Find(id);
    if (entry == entries_.end()) return absl::NotFoundError(absl::StrCat("no prefix has the id ", id));
    Erase(entry);
  }
  wake_();
  return absl::OkStatus();
}

std::vector<PinnedPrefix> PrefixBook::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<PinnedPrefix> prefixes;
  for (const Entry& entry : entries_) prefixes.push_back(entry.prefix);
  return prefixes;
}

void PrefixBook::Apply(Scheduler* scheduler) {
  std::vector<Change> changes;
  {
    absl::MutexLock lock(&mu_);
    changes.swap(changes_);
  }
  for (Change& change : changes) {
    if (change.pin.has_value()) {
      scheduler->pins().Add(*std::move(change.pin));
    } else {
      scheduler->pins().Remove(change.id);
    }
  }
}

void PrefixBook::Publish(const Scheduler& scheduler, EngineStats* stats) {
  const PrefixPins& pins = scheduler.blocks().pins();
  stats->pinned_blocks = pins.num_blocks();
  stats->pin_releases = pins.releases();
  absl::MutexLock lock(&mu_);
  total_blocks_ = scheduler.blocks().pool().num_total();
  auto entry = entries_.begin();  // the order is the same but for what is not applied yet
  for (int32_t i = 0; i < pins.size(); ++i) {
    if (entry == entries_.end() || entry->prefix.id != pins.id(i)) entry = Find(pins.id(i));
    if (entry != entries_.end()) (entry++)->prefix.num_held = pins.num_held(i);
  }
}

}  // namespace somnus
