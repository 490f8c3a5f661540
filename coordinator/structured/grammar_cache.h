#pragma once
// Compiled grammars by content. Compiles on threads of its own, so that callers go on; each source is
// compiled once for all callers at the same time. Thread safe.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/structured/compile_thread.h"
#include "coordinator/structured/grammar.h"

namespace somnus {

class GrammarCache {
 public:
  using Result = absl::StatusOr<std::shared_ptr<const CompiledGrammar>>;
  using Done = std::function<void(Result)>;

  struct Options {
    // Grammars that are kept, with their sources, and refusals, without. Grammars in use live on until their
    // matchers have ended.
    int64_t max_bytes = int64_t{512} << 20;
    int64_t max_entries = 4096;
    int32_t threads = 2;
    // Calls that wait at once.
    int64_t max_waiting = 1024;
    // From the call to its answer, with the time that the source waits for a thread.
    absl::Duration max_wait = absl::Seconds(10);
    // Called after each compile, also after a compile that ended in an error, on the compile's thread; may be
    // empty.
    std::function<void(absl::Duration)> on_compiled;
  };

  struct Counts {
    int64_t hits = 0, misses = 0;
    int64_t refused = 0;  // compiles that ended in an error
    int64_t expired = 0;  // calls that waited for too long
    int64_t evicted = 0;
    int64_t entries = 0, bytes = 0, waiting = 0;
  };

  // ResourceExhausted: no thread is available.
  static absl::StatusOr<std::unique_ptr<GrammarCache>> Start(std::unique_ptr<GrammarCompiler> compiler,
                                                             const Options& options);
  // Answers all that wait with Cancelled, after the compiles under way have ended.
  ~GrammarCache();
  GrammarCache(const GrammarCache&) = delete;
  GrammarCache& operator=(const GrammarCache&) = delete;

  // Calls `done` exactly once: before Get returns where the answer is known, otherwise on a thread of the
  // cache, which `done` must not keep. Errors: the compiler's; Unavailable: the wait was too long, or
  // too many wait. An error that the source is to blame for is kept like a grammar, under the source's
  // digest: a refused source may be large.
  void Get(GrammarSource source, Done done);
  // Get for a caller that may wait.
  Result Wait(GrammarSource source);

  Counts counts() const;

 private:
  static constexpr int kMaskTurns = 10;

  using Source = std::shared_ptr<const GrammarSource>;
  struct SourceHash {
    size_t operator()(const Source& source) const { return absl::Hash<GrammarSource>()(*source); }
  };
  struct SourceEqual {
    bool operator()(const Source& a, const Source& b) const { return *a == *b; }
  };
  template <typename Value>
  using BySource = absl::flat_hash_map<Source, Value, SourceHash, SourceEqual>;

  struct Entry {
    Source source;       // null: refused
    std::string digest;  // of a refused source
    Result result;
    int64_t bytes;
  };
  struct Waiter {
    Source source;
    Done done;
  };
  struct Expiry {
    MonotonicTime at;
    int64_t waiter;
  };

  GrammarCache(std::unique_ptr<GrammarCompiler> compiler, const Options& options);

  void CompileSources();
  void ExpireWaiters();
  // Makes masks ahead of need: for the time of a compile, and on one thread alone for longer, up to
  // kMaskTurns times, while no source waits for a thread and the grammar is kept.
  void MakeMasks(const Source& source, const CompiledGrammar& grammar);
  // Whether the thread may make masks, or more masks, now.
  bool BeginMasks(const Source& source, bool is_first);
  void NoteMasks(const Source& source, int64_t bytes);
  // All with mu_ held.
  const Result* Find(const Source& source, const std::string& digest);
  // `digest`: of a source that is refused.
  void Keep(const Source& source, const std::string& digest, const Result& result);
  void EvictToFit();
  // The calls of `source` that still wait, which have their answer then.
  std::vector<Done> TakeWaiters(const Source& source);

  const std::unique_ptr<GrammarCompiler> compiler_;
  const Options options_;

  mutable std::mutex mu_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::list<Entry> entries_;  // the entry that was used last comes first
  BySource<std::list<Entry>::iterator> by_source_;
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> refused_;  // by digest
  std::deque<Source> queue_;  // sources that no thread compiles yet
  // The calls for a source, expired calls included, from the first call to the end of the compile.
  BySource<std::vector<int64_t>> calls_;
  absl::flat_hash_map<int64_t, Waiter> waiters_;  // by the call's number
  std::deque<Expiry> expiries_;                   // by time, also of calls that have their answer
  int64_t next_call_ = 0;
  bool makes_more_masks_ = false;  // a thread does
  Counts counts_;

  std::vector<std::unique_ptr<CompileThread>> threads_;
};

}  // namespace somnus
