#pragma once
// The contents that have entered and left the prefix caches of a served model, for readers that follow the
// caches, as routers do.
//
// Batches have sequence numbers without a gap, over all replicas together. The log keeps the latest batches,
// within a bound, and beside them the contents that are cached now. A reader goes on from the number that the
// reader names, or, where that number is not in the log any more, or not yet, begins with a snapshot: for
// each replica that everything is cleared, then all that is stored. A reader that is so slow that the log has
// lost its next batch begins with a snapshot, too: nothing is held for a reader but its place. A log whose
// numbers begin with the time never uses a number of an earlier process again.
//
// Ownership: shared by the engine's loops and the readers. Thread safe; Append copies what it is given and
// takes a lock, which a reader holds for as long as it takes to copy one pointer for each cached block.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/block_manager/block_events.h"

namespace somnus {

struct KvEventBatch {
  int64_t sequence = 0;  // of a part of a snapshot: of the last batch that the snapshot includes
  absl::Time time;
  int32_t replica = 0;
  // How many parts of the snapshot follow: a reader can go on from `sequence` + 1 only after the last one. A
  // batch that is no part of one has 0.
  int64_t num_parts_left = 0;
  bool is_snapshot = false;
  int64_t num_blocks = 0;  // of the whole snapshot, those of each medium counted
  std::vector<BlockEvent> events;
};

struct KvEventLogOptions {
  int64_t max_events = 0;  // that the log keeps, as SizeOf counts them; but the last batch always
  int32_t block_size = 0;  // tokens
  int32_t num_replicas = 1;
  int64_t first_sequence = 1;  // of the first batch
};

class KvEventReader;

class KvEventLog : public std::enable_shared_from_this<KvEventLog> {
 public:
  explicit KvEventLog(const KvEventLogOptions& options);
  KvEventLog(const KvEventLog&) = delete;
  KvEventLog& operator=(const KvEventLog&) = delete;

  // Adds a batch, unless it is empty. For one loop: its replica's.
  void Append(int32_t replica, std::vector<BlockEvent> events, absl::Time now);
  // Nothing comes any more: readers end once they have read what there is.
  void End();

  // Not set: the reader begins with a snapshot. `on_ready` is called when there is something to read, or the
  // end, after Next has returned null; on any thread, with the log's lock, so it must not block or call the
  // log.
  std::unique_ptr<KvEventReader> Follow(std::optional<int64_t> from_sequence, std::function<void()> on_ready);

  int32_t block_size() const { return options_.block_size; }

 private:
  friend class KvEventReader;
  struct Content {
    uint64_t parent_content_id = 0;
    std::vector<int32_t> tokens;
    std::string salt;
  };
  // By medium and content id, so that parents come before their children.
  using Cached = std::map<std::pair<CacheMedium, uint64_t>, std::shared_ptr<const Content>>;
  struct Snapshot;
  struct Entry;  // of a snapshot

  void Apply(const BlockEvent& event, Cached* cached) const;
  // The cached blocks as of the batch with that number and time, and blocks that came later: a reader goes on
  // after that batch, and hears of the later blocks again. The engine's loop waits for a small part of the
  // snapshot at most.
  std::unique_ptr<Snapshot> TakeSnapshot(int64_t sequence, absl::Time time) const ABSL_LOCKS_EXCLUDED(mu_);
  // Adds the replica's entries after `*last`, at most `most` entries, to a part of a snapshot. False: no more
  // entries follow.
  bool TakeEntries(size_t replica, size_t most, std::optional<Cached::key_type>* last,
                   std::vector<Entry>* entries) const ABSL_LOCKS_EXCLUDED(mu_);
  int64_t first() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return next_ - static_cast<int64_t>(batches_.size());
  }
  void WakeReaders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const KvEventLogOptions options_;
  mutable absl::Mutex mu_;
  std::deque<std::shared_ptr<const KvEventBatch>> batches_
      ABSL_GUARDED_BY(mu_);  // with numbers up to next_ - 1
  int64_t next_ ABSL_GUARDED_BY(mu_);
  int64_t size_ ABSL_GUARDED_BY(mu_) = 0;  // of all batches_
  absl::Time last_time_ ABSL_GUARDED_BY(mu_) = absl::UnixEpoch();
  std::vector<Cached> cached_ ABSL_GUARDED_BY(mu_);  // by replica
  std::set<KvEventReader*> waiting_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

// For one thread at a time. Its destructor may come from any thread; afterwards on_ready is not called.
class KvEventReader {
 public:
  KvEventReader(std::shared_ptr<KvEventLog> log, std::optional<int64_t> from_sequence,
                std::function<void()> on_ready);
  ~KvEventReader();
  KvEventReader(const KvEventReader&) = delete;
  KvEventReader& operator=(const KvEventReader&) = delete;

  // The next batch, or the next part of a snapshot. Null: there is none now, or, with ended(), none any more.
  std::shared_ptr<const KvEventBatch> Next();
  bool ended() const { return ended_; }
  const KvEventLog& log() const { return *log_; }

 private:
  friend class KvEventLog;

  const std::shared_ptr<KvEventLog> log_;
  const std::function<void()> on_ready_;
  std::optional<int64_t> cursor_;                   // the number of the batch that is read next
  std::unique_ptr<KvEventLog::Snapshot> snapshot_;  // while parts of it are left
  bool ended_ = false;
};

}  // namespace somnus
