#include "coordinator/structured/grammar_cache.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/freed_memory.h"
#include "base/sha256.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

// Another attempt would end alike. A compile that took too long may have shared its CPU with others.
bool IsFinal(const absl::Status& status) {
  return status.ok() || absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status);
}

// A compile of less time has not freed much memory.
constexpr absl::Duration kLongCompile = absl::Milliseconds(20);

// Bytes of a refusal's digest and of its places in the list and the table.
constexpr int64_t kRefusalBytes = 256;

int64_t BytesOf(const GrammarSource& source, const CompiledGrammar& grammar) {
  return static_cast<int64_t>(sizeof(GrammarSource)) + source.bytes() + grammar.bytes();
}

// Two sources with one digest are equal.
std::string DigestOf(const GrammarSource& source) {
  Sha256 digest;
  digest.Add(static_cast<uint64_t>(source.kind));
  digest.Add(source.text);
  for (const std::string& choice : source.choices) digest.Add(choice);
  digest.Add(uint64_t{source.layout.any_whitespace});
  digest.Add(static_cast<uint64_t>(int64_t{source.layout.max_whitespace.value_or(-1)}));
  return digest.Hex();
}

}  // namespace

GrammarCache::GrammarCache(std::unique_ptr<GrammarCompiler> compiler, const Options& options)
    : compiler_(std::move(compiler)), options_(options) {}

absl::StatusOr<std::unique_ptr<GrammarCache>> GrammarCache::Start(std::unique_ptr<GrammarCompiler> compiler,
                                                                  const Options& options) {
  std::unique_ptr<GrammarCache> cache(new GrammarCache(std::move(compiler), options));
  GrammarCache* const self = cache.get();
  for (int32_t i = 0; i < options.threads; ++i) {
    ASSIGN_OR_RETURN(auto thread, CompileThread::Start([self] { self->CompileSources(); }));
    cache->threads_.push_back(std::move(thread));
  }
  ASSIGN_OR_RETURN(auto thread, CompileThread::Start([self] { self->ExpireWaiters(); }));
  cache->threads_.push_back(std::move(thread));
  return cache;
}

GrammarCache::~GrammarCache() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    ends_ = true;
  }
  changed_.notify_all();
  threads_.clear();
  for (auto& [call, waiter] : waiters_) waiter.done(absl::CancelledError("the server ends"));
}

void GrammarCache::Get(GrammarSource source, Done done) {
  const auto key = std::make_shared<const GrammarSource>(std::move(source));
  const std::string digest = DigestOf(*key);
  Result answer =
      absl::UnavailableError(absl::StrCat(options_.max_waiting, " requests wait for their grammars"));
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (const Result* known = Find(key, digest); known != nullptr) {
      ++counts_.hits;
      answer = *known;
    } else if (static_cast<int64_t>(waiters_.size()) < options_.max_waiting) {
      ++counts_.misses;
      const auto [calls, added] = calls_.try_emplace(key);
      if (added) queue_.push_back(key);
      calls->second.push_back(next_call_);
      waiters_[next_call_] = {calls->first, std::move(done)};
      expiries_.push_back({MonotonicNow() + options_.max_wait, next_call_++});
      changed_.notify_all();
      return;
    }
  }
  done(std::move(answer));
}

GrammarCache::Result GrammarCache::Wait(GrammarSource source) {
  std::promise<Result> promise;
  Get(std::move(source), [&promise](Result result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

GrammarCache::Counts GrammarCache::counts() const {
  std::lock_guard<std::mutex> lock(mu_);
  Counts counts = counts_;
  counts.entries = static_cast<int64_t>(entries_.size());
  counts.waiting = static_cast<int64_t>(waiters_.size());
  return counts;
}

const GrammarCache::Result* GrammarCache::Find(const Source& source, const std::string& digest) {
  std::list<Entry>::iterator entry;
  if (const auto found = by_source_.find(source); found != by_source_.end()) {
    entry = found->second;
  } else if (const auto refused = refused_.find(digest); refused != refused_.end()) {
    entry = refused->second;
  } else {
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, entry);
  return &entries_.front().result;
}

void GrammarCache::Keep(const Source& source, const std::string& digest, const Result& result) {
  if (result.ok()) {
    entries_.push_front({source, "", result, BytesOf(*source, **result)});
    by_source_[source] = entries_.begin();
  } else {
    const auto message_bytes = static_cast<int64_t>(result.status().message().size());
    entries_.push_front({nullptr, digest, result, kRefusalBytes + message_bytes});
    refused_[digest] = entries_.begin();
  }
  counts_.bytes += entries_.front().bytes;
  EvictToFit();
}

void GrammarCache::EvictToFit() {
  while (counts_.bytes > options_.max_bytes || static_cast<int64_t>(entries_.size()) > options_.max_entries) {
    const Entry& last = entries_.back();
    counts_.bytes -= last.bytes;
    ++counts_.evicted;
    if (last.source != nullptr) by_source_.erase(last.source);
    refused_.erase(last.digest);
    entries_.pop_back();
  }
}

void GrammarCache::CompileSources() {
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (ends_) return;
    const Source source = std::move(queue_.front());
    queue_.pop_front();
    if (const std::vector<int64_t>& calls = calls_.at(source);
        std::none_of(calls.begin(), calls.end(), [this](int64_t call) { return waiters_.contains(call); })) {
      calls_.erase(source);
      continue;
    }
    lock.unlock();
    const MonotonicTime begin = MonotonicNow();
    const Result result = compiler_->Compile(*source);
    const absl::Duration time = MonotonicNow() - begin;
    if (options_.on_compiled) options_.on_compiled(time);
    const std::string digest = result.ok() ? "" : DigestOf(*source);
    lock.lock();
    if (!result.ok()) ++counts_.refused;
    if (IsFinal(result.status())) Keep(source, digest, result);
    const std::vector<Done> waiters = TakeWaiters(source);
    lock.unlock();
    for (const Done& done : waiters) done(result);
    if (time > kLongCompile) ReturnFreedMemory();
    if (result.ok()) MakeMasks(source, **result);
    lock.lock();
  }
}

void GrammarCache::MakeMasks(const Source& source, const CompiledGrammar& grammar) {
  if (!BeginMasks(source, /*is_first=*/true)) return;
  bool has_more = grammar.MakeMasks();
  NoteMasks(source, grammar.bytes());
  if (!has_more || !BeginMasks(source, /*is_first=*/false)) return;
  for (int turn = 1; has_more && turn < kMaskTurns; ++turn) {
    has_more = grammar.MakeMasks();
    NoteMasks(source, grammar.bytes());
    std::lock_guard<std::mutex> lock(mu_);
    has_more = has_more && !ends_ && queue_.empty() && by_source_.contains(source);
  }
  std::lock_guard<std::mutex> lock(mu_);
  makes_more_masks_ = false;
}

bool GrammarCache::BeginMasks(const Source& source, bool is_first) {
  std::lock_guard<std::mutex> lock(mu_);
  // Sources that wait for a thread go first; then matchers make this grammar's masks.
  if (ends_ || !queue_.empty() || !by_source_.contains(source)) return false;
  return is_first || !std::exchange(makes_more_masks_, true);
}

void GrammarCache::NoteMasks(const Source& source, int64_t bytes) {
  bytes += static_cast<int64_t>(sizeof(GrammarSource)) + source->bytes();
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = by_source_.find(source);
  if (found == by_source_.end()) return;
  counts_.bytes += bytes - std::exchange(found->second->bytes, bytes);
  EvictToFit();
}

std::vector<GrammarCache::Done> GrammarCache::TakeWaiters(const Source& source) {
  std::vector<Done> waiters;
  for (const int64_t call : calls_.at(source)) {
    const auto waiter = waiters_.find(call);
    if (waiter == waiters_.end()) continue;
    waiters.push_back(std::move(waiter->second.done));
    waiters_.erase(waiter);
  }
  calls_.erase(source);
  return waiters;
}

void GrammarCache::ExpireWaiters() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!ends_) {
    if (expiries_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const absl::Duration left = expiries_.front().at - MonotonicNow();
    if (left > absl::ZeroDuration()) {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(left));
      continue;
    }
    const auto waiter = waiters_.find(expiries_.front().waiter);
    expiries_.pop_front();
    if (waiter == waiters_.end()) continue;
    const Done done = std::move(waiter->second.done);
    waiters_.erase(waiter);
    ++counts_.expired;
    lock.unlock();
    done(absl::UnavailableError(
        absl::StrCat("the grammar was not ready after ", absl::FormatDuration(options_.max_wait))));
    lock.lock();
  }
}

}  // namespace somnus
