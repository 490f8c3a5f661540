// Batches, bounds, repeated attempts and the end of the exporter, with a collector of the test.

#include "coordinator/traces/span_exporter.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace somnus {
namespace {

// Answers each message as the test says, and remembers the numbers of spans of the messages that it took.
class FakeCollector {
 public:
  using Answer = std::function<absl::Status(int attempt)>;
  explicit FakeCollector(Answer answer) : answer_(std::move(answer)) {}

  absl::Status Take(const std::string& body) {
    const auto json = nlohmann::json::parse(body);
    int attempt;
    {
      absl::MutexLock lock(&mu_);
      attempt = num_attempts_++;
    }
    const absl::Status status = answer_(attempt);
    absl::MutexLock lock(&mu_);
    if (status.ok()) taken_.push_back(json["resourceSpans"][0]["scopeSpans"][0]["spans"].size());
    return status;
  }
  void WaitForAttempts(int count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return num_attempts_ >= count; };
    mu_.Await(absl::Condition(&enough));
  }
  std::vector<size_t> taken() const {
    absl::MutexLock lock(&mu_);
    return taken_;
  }

 private:
  const Answer answer_;
  mutable absl::Mutex mu_;
  int num_attempts_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<size_t> taken_ ABSL_GUARDED_BY(mu_);
};

class FakeSender : public SpanSender {
 public:
  explicit FakeSender(FakeCollector* collector) : collector_(*collector) {}
  absl::Status Send(const std::string& body, absl::Duration /*timeout*/) override {
    return collector_.Take(body);
  }
  void Cancel() override {}

 private:
  FakeCollector& collector_;
};

// A collector that never answers, until the call is cancelled.
class SilentSender : public SpanSender {
 public:
  absl::Status Send(const std::string& /*body*/, absl::Duration timeout) override {
    begun.Stop();
    cancelled_.WaitFor(timeout);
    return absl::UnavailableError("no answer");
  }
  void Cancel() override { cancelled_.Stop(); }
  StopSignal begun;

 private:
  StopSignal cancelled_;
};

std::vector<Span> Spans(int count) { return std::vector<Span>(count); }

TraceExportOptions Options() {
  TraceExportOptions options;
  options.endpoint = "http://test";
  options.max_queued_spans = 10;
  options.max_batch_spans = 4;
  options.interval = absl::Milliseconds(1);
  options.longest_pause = absl::Milliseconds(2);
  return options;
}

const FakeCollector::Answer kTakes = [](int) { return absl::OkStatus(); };

TEST(SpanExporterTest, WhatWaitsIsSentAtTheEnd) {
  TraceExportOptions options = Options();
  options.interval = absl::Hours(1);
  FakeCollector collector(kTakes);
  SpanExporter exporter(options, std::make_unique<FakeSender>(&collector));
  exporter.Add(Spans(3));
  exporter.Shutdown(absl::Seconds(60));
  EXPECT_EQ(collector.taken(), std::vector<size_t>{3});
  EXPECT_EQ(exporter.counts().exported, 3);
  exporter.Add(Spans(1));
  EXPECT_EQ(exporter.counts().dropped_full, 1) << "after the end";
  exporter.Shutdown(absl::Seconds(60));
}

TEST(SpanExporterTest, MessagesAreBounded) {
  TraceExportOptions options = Options();
  options.interval = absl::Hours(1);
  FakeCollector collector(kTakes);
  SpanExporter exporter(options, std::make_unique<FakeSender>(&collector));
  exporter.Add(Spans(9));
  exporter.Shutdown(absl::Seconds(60));
  EXPECT_EQ(collector.taken(), (std::vector<size_t>{4, 4, 1}));
}

TEST(SpanExporterTest, AFewSpansAreSentAfterTheInterval) {
  FakeCollector collector(kTakes);
  SpanExporter exporter(Options(), std::make_unique<FakeSender>(&collector));
  exporter.Add(Spans(1));
  collector.WaitForAttempts(1);
}

TEST(SpanExporterTest, AnUnreachableCollectorIsTriedAgainAndSpansBeyondTheBoundAreDropped) {
  absl::Mutex mu;
  bool reachable = false;
  FakeCollector collector([&](int) {
    absl::MutexLock lock(&mu);
    return reachable ? absl::OkStatus() : absl::UnavailableError("nobody listens");
  });
  SpanExporter exporter(Options(), std::make_unique<FakeSender>(&collector));
  exporter.Add(Spans(4));
  collector.WaitForAttempts(3);
  exporter.Add(Spans(5));
  exporter.Add(Spans(2));  // with those under way that would be 11
  EXPECT_EQ(exporter.counts().dropped_full, 2);
  EXPECT_GE(exporter.counts().failed_sends, 2);
  {
    absl::MutexLock lock(&mu);
    reachable = true;
  }
  exporter.Shutdown(absl::Seconds(60));
  EXPECT_EQ(exporter.counts().exported + exporter.counts().dropped_end, 9);
}

TEST(SpanExporterTest, ARefusedMessageIsNotSentAgain) {
  FakeCollector collector(
      [](int attempt) { return attempt == 0 ? absl::UnknownError("status 400") : absl::OkStatus(); });
  SpanExporter exporter(Options(), std::make_unique<FakeSender>(&collector));
  exporter.Add(Spans(2));
  collector.WaitForAttempts(1);
  exporter.Add(Spans(3));
  exporter.Shutdown(absl::Seconds(60));
  EXPECT_EQ(collector.taken(), std::vector<size_t>{3});
  EXPECT_EQ(exporter.counts().dropped_refused, 2);
}

TEST(SpanExporterTest, TheEndWaitsForNoSilentCollector) {
  auto sender = std::make_unique<SilentSender>();
  SilentSender* const silent = sender.get();
  TraceExportOptions options = Options();
  options.timeout = absl::Hours(1);
  SpanExporter exporter(options, std::move(sender));
  exporter.Add(Spans(4));
  silent->begun.WaitFor(absl::InfiniteDuration());
  exporter.Add(Spans(4));  // nobody waits meanwhile
  exporter.Shutdown(absl::Milliseconds(10));
  EXPECT_EQ(exporter.counts().exported, 0);
  EXPECT_EQ(exporter.counts().dropped_end, 8);
}

}  // namespace
}  // namespace somnus
