#include "coordinator/engine/kv_event_log.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace somnus {
namespace {

// The bound of a part of a snapshot, so that the part's message stays small.
constexpr size_t kPartTokens = 64 << 10;
// How many entries of the cache a snapshot takes under a single lock, for which the engine's loop may have to
// wait some tens of microseconds.
constexpr size_t kEntriesAtOnce = 256;

}  // namespace

struct KvEventLog::Entry {
  CacheMedium medium;
  CachedContent content;  // borrows from `holds`
  std::shared_ptr<const Content> holds;
};

// The contents that were cached at a moment, and how far a reader has read them.
struct KvEventLog::Snapshot {
  // A part is of one replica, which begins where `clears`.
  struct Part {
    int32_t replica = 0;
    bool clears = false;
    std::vector<Entry> entries;
  };

  std::shared_ptr<const KvEventBatch> Next() {
    Part part = std::move(parts.front());
    parts.pop_front();
    BlockEventRecorder recorder;
    if (part.clears) recorder.NoteCleared();
    for (const Entry& entry : part.entries) recorder.NoteStored(entry.content, entry.medium);
    auto batch = std::make_shared<KvEventBatch>();
    batch->sequence = sequence;
    batch->time = time;
    batch->replica = part.replica;
    batch->num_parts_left = static_cast<int64_t>(parts.size());
    batch->is_snapshot = true;
    batch->num_blocks = num_blocks;
    batch->events = recorder.Take();
    return batch;
  }

  int64_t sequence = 0;
  absl::Time time;
  int64_t num_blocks = 0;
  std::deque<Part> parts;
};

KvEventLog::KvEventLog(const KvEventLogOptions& options)
    : options_(options), next_(options.first_sequence), cached_(static_cast<size_t>(options.num_replicas)) {
  SOMNUS_CHECK(options.block_size >= 1 && options.num_replicas >= 1);
}

void KvEventLog::Apply(const BlockEvent& event, Cached* cached) const {
  if (event.kind == BlockEvent::Kind::kCleared) return cached->clear();
  if (event.kind == BlockEvent::Kind::kRemoved) {
    for (const uint64_t id : event.content_ids) cached->erase({event.medium, id});
    return;
  }
  uint64_t parent = event.parent_content_id;
  auto tokens = event.tokens.begin();
  for (const uint64_t id : event.content_ids) {
    auto content = std::make_shared<Content>();
    content->parent_content_id = parent;
    content->tokens.assign(tokens, tokens + options_.block_size);
    if (parent == 0) content->salt = event.salt;
    // Ids grow, so that most of them come last of their medium, and in a cache of one medium last of all.
    cached->insert_or_assign(cached->end(), std::pair(event.medium, id), std::move(content));
    tokens += options_.block_size;
    parent = id;
  }
}

void KvEventLog::Append(int32_t replica, std::vector<BlockEvent> events, absl::Time now) {
  if (events.empty()) return;
  auto batch = std::make_shared<KvEventBatch>();
  batch->time = now;
  batch->replica = replica;
  batch->events = std::move(events);
  int64_t size = 0;
  for (const BlockEvent& event : batch->events) size += SizeOf(event);
  absl::MutexLock lock(&mu_);
  for (const BlockEvent& event : batch->events) Apply(event, &cached_[static_cast<size_t>(replica)]);
  batch->sequence = next_++;
  last_time_ = now;
  batches_.push_back(std::move(batch));
  size_ += size;
  while (size_ > options_.max_events && batches_.size() > 1) {
    for (const BlockEvent& event : batches_.front()->events) size_ -= SizeOf(event);
    batches_.pop_front();
  }
  WakeReaders();
}

void KvEventLog::End() {
  absl::MutexLock lock(&mu_);
  ended_ = true;
  WakeReaders();
}

void KvEventLog::WakeReaders() {
  for (KvEventReader* const reader : waiting_) reader->on_ready_();
  waiting_.clear();
}

std::unique_ptr<KvEventReader> KvEventLog::Follow(std::optional<int64_t> from_sequence,
                                                  std::function<void()> on_ready) {
  return std::make_unique<KvEventReader>(shared_from_this(), from_sequence, std::move(on_ready));
}

std::unique_ptr<KvEventLog::Snapshot> KvEventLog::TakeSnapshot(int64_t sequence, absl::Time time) const {
  auto snapshot = std::make_unique<Snapshot>();
  snapshot->sequence = sequence;
  snapshot->time = time;
  const size_t most = std::max<size_t>(1, kPartTokens / static_cast<size_t>(options_.block_size));
  const auto num_replicas = static_cast<size_t>(options_.num_replicas);
  for (size_t replica = 0; replica < num_replicas; ++replica) {
    Snapshot::Part part = {static_cast<int32_t>(replica), /*clears=*/true, {}};
    std::optional<Cached::key_type> last;
    while (true) {
      const bool goes_on = TakeEntries(replica, most, &last, &part.entries);
      snapshot->num_blocks += static_cast<int64_t>(part.entries.size());
      snapshot->parts.push_back(std::exchange(part, {static_cast<int32_t>(replica), /*clears=*/false, {}}));
      if (!goes_on) break;
    }
  }
  return snapshot;
}

bool KvEventLog::TakeEntries(size_t replica, size_t most, std::optional<Cached::key_type>* last,
                             std::vector<Entry>* entries) const {
  for (size_t left = most; left > 0;) {
    absl::MutexLock lock(&mu_);
    const Cached& cached = cached_[replica];
    auto it = last->has_value() ? cached.upper_bound(**last) : cached.begin();
    for (size_t i = std::min(left, kEntriesAtOnce); i > 0 && it != cached.end(); --i, --left, ++it) {
      const auto& [key, content] = *it;
      entries->push_back(
          {key.first, {key.second, content->parent_content_id, content->tokens, content->salt}, content});
      *last = key;
    }
    if (it == cached.end()) return false;
  }
  return true;
}

KvEventReader::KvEventReader(std::shared_ptr<KvEventLog> log, std::optional<int64_t> from_sequence,
                             std::function<void()> on_ready)
    : log_(std::move(log)), on_ready_(std::move(on_ready)), cursor_(from_sequence) {}

KvEventReader::~KvEventReader() {
  absl::MutexLock lock(&log_->mu_);
  log_->waiting_.erase(this);
}

std::shared_ptr<const KvEventBatch> KvEventReader::Next() {
  int64_t sequence = 0;
  absl::Time time;
  if (snapshot_ == nullptr) {
    absl::MutexLock lock(&log_->mu_);
    log_->waiting_.erase(this);
    if (cursor_.has_value() && *cursor_ == log_->next_) {
      ended_ = log_->ended_;
      if (!ended_) log_->waiting_.insert(this);
      return nullptr;
    }
    if (cursor_.has_value() && *cursor_ >= log_->first() && *cursor_ < log_->next_) {
      const int64_t index = (*cursor_)++ - log_->first();
      return log_->batches_[static_cast<size_t>(index)];
    }
    cursor_ = log_->next_;
    sequence = log_->next_ - 1;
    time = log_->last_time_;
  }
  if (snapshot_ == nullptr) snapshot_ = log_->TakeSnapshot(sequence, time);
  std::shared_ptr<const KvEventBatch> part = snapshot_->Next();
  if (part->num_parts_left == 0) snapshot_.reset();
  return part;
}

}  // namespace somnus
