#include "coordinator/structured/grammar_cache.h"

#include <atomic>
#include <future>
#include <thread>

#include "absl/synchronization/notification.h"
#include "coordinator/structured/lazy_compiler.h"
#include "gtest/gtest.h"

namespace somnus {
namespace {

class FakeGrammar : public CompiledGrammar {
 public:
  FakeGrammar(int64_t bytes, int64_t masks, std::function<bool()> make)
      : bytes_(bytes), masks_(masks), make_(std::move(make)) {}
  absl::StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    return absl::UnimplementedError("a fake");
  }
  bool MakeMasks() const override {
    bytes_ += masks_;
    return make_ && make_();
  }
  int64_t bytes() const override { return bytes_; }

 private:
  mutable std::atomic<int64_t> bytes_;
  const int64_t masks_;
  const std::function<bool()> make_;
};

// Compiles as the test says, and counts. The sources "wait..." wait until the test opens the gate.
struct Compiles {
  std::atomic<int> count{0};
  absl::Notification gate;
  int64_t bytes = 1000;
  int64_t masks = 0;  // bytes of the masks that a grammar makes at once
  // Called when the grammar of the source "many masks" makes masks; returns whether there are more.
  std::function<bool()> make_masks;
};

class FakeCompiler : public GrammarCompiler {
 public:
  explicit FakeCompiler(Compiles* compiles) : compiles_(compiles) {}
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSource& source) override {
    ++compiles_->count;
    if (source.text.rfind("wait", 0) == 0) compiles_->gate.WaitForNotification();
    if (source.text.rfind("wrong", 0) == 0) return absl::InvalidArgumentError("wrong");
    if (source.text == "slow") return absl::DeadlineExceededError("slow");
    return std::make_shared<FakeGrammar>(
        compiles_->bytes, compiles_->masks,
        source.text == "many masks" ? compiles_->make_masks : std::function<bool()>());
  }

 private:
  Compiles* const compiles_;
};

GrammarSource Regex(std::string text) {
  return {.kind = GrammarKind::kRegex, .text = std::move(text), .choices = {}, .layout = {}};
}

class GrammarCaches : public ::testing::Test {
 protected:
  void Start(GrammarCache::Options options) {
    auto cache = GrammarCache::Start(std::make_unique<FakeCompiler>(&compiles_), options);
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }
  std::future<GrammarCache::Result> Ask(GrammarSource source) {
    auto promise = std::make_shared<std::promise<GrammarCache::Result>>();
    cache_->Get(std::move(source),
                [promise](GrammarCache::Result result) { promise->set_value(std::move(result)); });
    return promise->get_future();
  }
  void AwaitCompiles(int count) {
    while (compiles_.count < count) std::this_thread::yield();
  }

  Compiles compiles_;
  std::unique_ptr<GrammarCache> cache_;
};

TEST_F(GrammarCaches, TheSameContentIsCompiledOnce) {
  Start({});
  const auto first = cache_->Wait(Regex("a"));
  const auto second = cache_->Wait(Regex("a"));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(compiles_.count, 1);
  EXPECT_EQ(cache_->counts().hits, 1);
  EXPECT_EQ(cache_->counts().misses, 1);
}

TEST_F(GrammarCaches, KindTextAndOptionsAreTheContent) {
  Start({});
  GrammarSource source = Regex("a");
  EXPECT_TRUE(cache_->Wait(source).ok());
  source.kind = GrammarKind::kEbnf;
  EXPECT_TRUE(cache_->Wait(source).ok());
  source.layout.any_whitespace = false;
  EXPECT_TRUE(cache_->Wait(source).ok());
  source.layout.max_whitespace = 1;
  EXPECT_TRUE(cache_->Wait(source).ok());
  source.choices = {"a"};
  EXPECT_TRUE(cache_->Wait(source).ok());
  source.choices = {"", "a"};
  EXPECT_TRUE(cache_->Wait(source).ok());
  EXPECT_EQ(compiles_.count, 6);
}

TEST_F(GrammarCaches, CallsAtTheSameTimeShareOneCompile) {
  Start({});
  auto first = Ask(Regex("wait"));
  AwaitCompiles(1);
  auto second = Ask(Regex("wait"));
  compiles_.gate.Notify();
  const auto a = first.get(), b = second.get();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(compiles_.count, 1);
}

TEST_F(GrammarCaches, BytesAreBoundedAndTheLeastRecentlyUsedGoFirst) {
  compiles_.bytes = 1000;
  Start({.max_bytes = 3600});
  for (const char* text : {"a", "b", "c", "a", "d"}) EXPECT_TRUE(cache_->Wait(Regex(text)).ok());
  EXPECT_LE(cache_->counts().bytes, 3600);
  EXPECT_EQ(compiles_.count, 4);
  EXPECT_TRUE(cache_->Wait(Regex("a")).ok());
  EXPECT_EQ(compiles_.count, 4);
  EXPECT_TRUE(cache_->Wait(Regex("b")).ok());
  EXPECT_EQ(compiles_.count, 5);
}

TEST_F(GrammarCaches, AGrammarThatIsTooLargeIsServedAndNotKept) {
  compiles_.bytes = 10000;
  Start({.max_bytes = 5000});
  EXPECT_TRUE(cache_->Wait(Regex("a")).ok());
  EXPECT_EQ(cache_->counts().bytes, 0);
  EXPECT_EQ(cache_->counts().entries, 0);
}

TEST_F(GrammarCaches, MasksThatAreMadeAfterTheAnswerCountToo) {
  compiles_.bytes = 1000;
  compiles_.masks = 2000;
  Start({.max_bytes = 5000});
  EXPECT_TRUE(cache_->Wait(Regex("a")).ok());
  while (cache_->counts().bytes < 3000) std::this_thread::yield();
  EXPECT_TRUE(cache_->Wait(Regex("b")).ok());
  while (cache_->counts().evicted == 0) std::this_thread::yield();
  EXPECT_LE(cache_->counts().bytes, 5000);
}

TEST_F(GrammarCaches, MasksAreMadeUntilNoneIsMissingOrEnoughTimeIsSpent) {
  compiles_.masks = 100;
  for (const auto& [missing, made] : {std::pair(1, 1), std::pair(4, 4), std::pair(1000, 10)}) {
    std::atomic<int> turns = 0;
    compiles_.make_masks = [&turns, missing = missing] { return ++turns < missing; };
    Start({.threads = 1});
    EXPECT_TRUE(cache_->Wait(Regex("many masks")).ok());
    while (cache_->counts().bytes < compiles_.bytes + made * compiles_.masks) std::this_thread::yield();
    cache_.reset();
    EXPECT_EQ(turns, made);
  }
}

TEST_F(GrammarCaches, MasksAreMadeWhileNoSourceWaits) {
  std::atomic<int> turns = 0;
  std::future<GrammarCache::Result> other;
  compiles_.make_masks = [&] {
    if (++turns == 2) other = Ask(Regex("b"));
    return true;
  };
  Start({.threads = 1});
  EXPECT_TRUE(cache_->Wait(Regex("many masks")).ok());
  while (turns < 2) std::this_thread::yield();
  while (cache_->counts().entries < 2) std::this_thread::yield();
  cache_.reset();
  EXPECT_TRUE(other.get().ok());
  EXPECT_EQ(turns, 2);
}

TEST_F(GrammarCaches, EntriesAreBounded) {
  Start({.max_entries = 2});
  for (const char* text : {"a", "b", "c"}) EXPECT_TRUE(cache_->Wait(Regex(text)).ok());
  EXPECT_EQ(cache_->counts().entries, 2);
  EXPECT_EQ(cache_->counts().evicted, 1);
}

TEST_F(GrammarCaches, AWrongSourceIsKeptAndASlowOneIsTriedAgain) {
  Start({});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cache_->Wait(Regex("wrong")).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(cache_->Wait(Regex("slow")).status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_EQ(compiles_.count, 3);
}

TEST_F(GrammarCaches, ARefusalIsKeptWithoutItsSource) {
  constexpr int64_t kMost = 1 << 20;
  Start({.max_bytes = kMost});
  const std::string large = "wrong" + std::string(4 * kMost, 'x');
  for (int i = 0; i < 2; ++i) EXPECT_EQ(cache_->Wait(Regex(large)).status().message(), "wrong");
  EXPECT_EQ(compiles_.count, 1);
  EXPECT_EQ(cache_->counts().hits, 1);
  EXPECT_EQ(cache_->counts().entries, 1);
  EXPECT_GT(cache_->counts().bytes, 0);
  EXPECT_LT(cache_->counts().bytes, 1000);
  // A refusal is of one source alone.
  GrammarSource other = Regex(large);
  other.kind = GrammarKind::kEbnf;
  EXPECT_FALSE(cache_->Wait(std::move(other)).ok());
  EXPECT_FALSE(cache_->Wait(Regex(large + "y")).ok());
  EXPECT_EQ(compiles_.count, 3);
  EXPECT_EQ(cache_->counts().entries, 3);
}

TEST_F(GrammarCaches, RefusalsGiveWayLikeGrammars) {
  Start({.max_entries = 2});
  for (const char* text : {"wrong a", "wrong b", "c", "wrong b"}) {
    const bool is_ok = cache_->Wait(Regex(text)).ok();
    EXPECT_EQ(is_ok, std::string(text) == "c");
  }
  EXPECT_EQ(compiles_.count, 3);
  EXPECT_EQ(cache_->counts().entries, 2);
  EXPECT_FALSE(cache_->Wait(Regex("wrong a")).ok());
  EXPECT_EQ(compiles_.count, 4);
  EXPECT_EQ(cache_->counts().evicted, 2);
}

TEST_F(GrammarCaches, ACallThatWaitsForTooLongHasItsAnswerWhileTheCompileGoesOn) {
  Start({.threads = 1, .max_wait = absl::Milliseconds(20)});
  EXPECT_EQ(cache_->Wait(Regex("wait")).status().code(), absl::StatusCode::kUnavailable);
  // The only thread is busy: nobody compiles this source, and the source's calls end all the same.
  EXPECT_EQ(cache_->Wait(Regex("behind")).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(cache_->counts().expired, 2);
  EXPECT_EQ(cache_->counts().waiting, 0);
  compiles_.gate.Notify();
  // The compile that nobody waited for has filled the cache at last.
  while (cache_->counts().entries == 0) std::this_thread::yield();
  EXPECT_TRUE(cache_->Wait(Regex("wait")).ok());
  EXPECT_EQ(compiles_.count, 1);
}

TEST_F(GrammarCaches, CallsThatWaitAreBounded) {
  Start({.threads = 1, .max_waiting = 2});
  auto first = Ask(Regex("wait"));
  AwaitCompiles(1);
  auto second = Ask(Regex("a"));
  EXPECT_EQ(cache_->Wait(Regex("b")).status().code(), absl::StatusCode::kUnavailable);
  compiles_.gate.Notify();
  EXPECT_TRUE(first.get().ok());
  EXPECT_TRUE(second.get().ok());
  EXPECT_TRUE(cache_->Wait(Regex("b")).ok());
}

TEST_F(GrammarCaches, CallsThatWaitAtTheEndAreAnswered) {
  Start({.threads = 1});
  auto running = Ask(Regex("wait"));
  AwaitCompiles(1);
  auto queued = Ask(Regex("a"));
  std::thread end([this] { cache_.reset(); });
  compiles_.gate.Notify();
  end.join();
  // The compile under way may end either way; both have an answer.
  EXPECT_TRUE(running.get().ok());
  const auto answer = queued.get();
  EXPECT_TRUE(answer.ok() || absl::IsCancelled(answer.status())) << answer.status();
}

TEST(LazyCompilerTest, MakesACompilerOnceAndAtTheFirstCompile) {
  Compiles compiles;
  int made = 0;
  LazyCompiler compiler([&]() -> absl::StatusOr<std::unique_ptr<GrammarCompiler>> {
    ++made;
    return std::make_unique<FakeCompiler>(&compiles);
  });
  EXPECT_EQ(made, 0);
  EXPECT_TRUE(compiler.Compile({.text = "a"}).ok());
  EXPECT_TRUE(compiler.Compile({.text = "b"}).ok());
  EXPECT_EQ(made, 1);
  EXPECT_EQ(compiles.count, 2);
}

TEST(LazyCompilerTest, SaysEachTimeWhyThereIsNoCompiler) {
  int made = 0;
  LazyCompiler compiler([&]() -> absl::StatusOr<std::unique_ptr<GrammarCompiler>> {
    ++made;
    return absl::InvalidArgumentError("no end token");
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(compiler.Compile({.text = "a"}).status().message(), "no end token");
  EXPECT_EQ(made, 1);
}

}  // namespace
}  // namespace somnus
