// Responses are made on the output threads, and one that is stuck there holds up no other.

#include "coordinator/openai/output_threads.h"

#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/openai/output_queue.h"
#include "coordinator/openai/response_producer.h"
#include "tests/api/api_server_fixture.h"
#include "tests/api/gated_tokenizer.h"

namespace somnus {
namespace {

class OutputThreadsTest : public ApiServerTest {
 protected:
  void TearDown() override {
    gate_.Open();
    server_->Shutdown(absl::ZeroDuration());
  }
  void ServeGated() {
    Start();
    server_->SetModel(GatedModel(engine_, &gate_));
  }
  // Starts a response whose first token has no text until the gate is opened.
  void StartStuck(HttpClient* client, bool stream) {
    gate_.Close();
    client->Write(RequestText(
        "POST", "/v1/completions",
        absl::StrCat(R"({"prompt": "!", "max_tokens": 4000, "stream": )", stream ? "true}" : "false}")));
    gate_.AwaitWaiter();
  }

  Gate gate_;
};

TEST_F(OutputThreadsTest, AStuckResponseStopsNobodyElse) {
  for (const bool stream : {false, true}) {
    ServeGated();
    HttpClient stuck(server_->port());
    StartStuck(&stuck, stream);
    EXPECT_EQ(Send("GET", "/health").status, 200);
    EXPECT_EQ(Admin("GET", "/metrics").status, 200);
    ExpectHealthy();
    const HttpReply other = Complete(R"({"prompt": "abc", "max_tokens": 3, "stream": true})");
    EXPECT_TRUE(absl::StrContains(other.body, "[DONE]")) << other.body;
    // The engine has continued the stuck one, too.
    EXPECT_TRUE(engine_->WaitIdle());
    gate_.Open();
    const HttpReply reply = stuck.ReadReply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_TRUE(absl::StrContains(reply.body, "\"finish_reason\":\"length\""));
  }
}

TEST_F(OutputThreadsTest, AClientThatLeavesAStuckResponseIsAbortedAtOnce) {
  for (const bool stream : {false, true}) {
    // This ends the previous server: none of its tasks may wait at the gate when it is closed next. 4000
    // tokens take longer than the test waits.
    Start({}, absl::Milliseconds(20));
    server_->SetModel(GatedModel(engine_, &gate_));
    HttpClient stuck(server_->port());
    StartStuck(&stuck, stream);
    stuck.Close();
    EXPECT_TRUE(engine_->WaitIdle()) << "the gate is still closed";
    EXPECT_EQ(engine_->num_aborted(), 1);
    gate_.Open();
    ExpectHealthy();
  }
}

// Only the limit of bytes that wait for their client can end this request: the write timeout is a minute, and
// fewer outputs are made than may wait.
TEST_F(OutputThreadsTest, WhatAClientDoesNotReadIsBoundedInBytes) {
  Serve(ApiServerOptions{.limits = {.max_stream_backlog_bytes = 64 << 10}}, absl::Microseconds(10));
  HttpClient client(server_->port());
  // Some 50 MB of events: more than sockets buffer.
  StartLongStream(&client, /*prompts=*/12, /*logprobs=*/20);
  EXPECT_TRUE(engine_->WaitIdle(absl::Seconds(60)));
  EXPECT_GT(engine_->num_aborted(), 0);
  const HttpReply reply = client.ReadReply();
  EXPECT_TRUE(absl::StrContains(reply.body, "The client reads too slowly.")) << reply.body.size();
  EXPECT_TRUE(absl::EndsWith(reply.body, "data: [DONE]\n\n"));
  ExpectHealthy();
}

// Runs tasks when the test says so.
class ManualTasks {
 public:
  PostTask Poster() {
    return [this](std::function<void()> task) {
      absl::MutexLock lock(&mutex_);
      tasks_.push_back(std::move(task));
    };
  }
  size_t count() {
    absl::MutexLock lock(&mutex_);
    return tasks_.size();
  }
  void RunOne() {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }

 private:
  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_;
};

GenerateParams Parse(const std::string& body, const ServedModel& model) {
  return std::get<GenerateParams>(ParseCompletionRequest(body, model, ApiLimits()));
}

class ResponseProducerTest : public ::testing::Test {
 protected:
  std::shared_ptr<ResponseProducer> Produce(const std::string& body) {
    auto producer = std::make_shared<ResponseProducer>(model_, Parse(body, *model_), nullptr, tasks_.Poster(),
                                                       limits_, budget_);
    EXPECT_TRUE(producer->Submit([this] { ++ready_; }).ok());
    return producer;
  }

  ManualTasks tasks_;  // outlives the engine, whose thread posts
  std::shared_ptr<FakeEngine> engine_ = std::make_shared<FakeEngine>();
  std::shared_ptr<const ServedModel> model_ = std::make_shared<const ServedModel>(FakeModel(engine_));
  ApiLimits limits_;
  std::shared_ptr<ResponseBudget> budget_ = std::make_shared<ResponseBudget>(100'000, 150'000);
  int ready_ = 0;
};

TEST_F(ResponseProducerTest, ResponsesThatWaitHaveABudget) {
  const auto run = [&](const char* fields) {
    const auto producer =
        Produce(absl::StrCat(R"({"prompt": "abc", "max_tokens": 400, "temperature": 1, )", fields, "}"));
    ResponseProducer::Output all;
    while (!all.done) {
      while (tasks_.count() == 0) absl::SleepFor(absl::Microseconds(100));
      tasks_.RunOne();
      ResponseProducer::Output output = producer->Take();
      all.bytes += output.bytes;
      all.done = output.done;
      all.error = output.error;
    }
    return all;
  };
  EXPECT_FALSE(run(R"("logprobs": 1)").error.has_value()) << "400 tokens of two log-probabilities each";
  const ResponseProducer::Output whole = run(R"("logprobs": 3)");
  ASSERT_TRUE(whole.error.has_value());
  EXPECT_EQ(whole.error->status, 400);
  const ResponseProducer::Output stream = run(R"("logprobs": 3, "stream": true)");
  EXPECT_FALSE(stream.error.has_value());
  EXPECT_FALSE(absl::StrContains(stream.bytes, "error")) << "what has been made is no longer held";
  const ResponseProducer::Output held = run(R"("logprobs": 3, "stream": true, "stream_interval": 1000)");
  EXPECT_TRUE(held.error.has_value() || absl::StrContains(held.bytes, "\"error\""));
  EXPECT_EQ(budget_->buffered_bytes(), 0);
}

TEST(ResponseBudget, OfOneResponseAndOfAll) {
  ResponseBudget budget(1'000'000, 1'500'000);
  {
    ResponseBudget::Part first(&budget), second(&budget), small(&budget);
    EXPECT_FALSE(first.Hold(1'000'000).has_value());
    EXPECT_FALSE(second.Hold(500'000).has_value());
    EXPECT_FALSE(small.Hold(10'000).has_value()) << "whatever the others hold";
    EXPECT_EQ(second.Hold(500'001)->status, 503);
    EXPECT_FALSE(first.Hold(900'000).has_value());
    EXPECT_FALSE(second.Hold(550'000).has_value());
    EXPECT_EQ(first.Hold(1'000'001)->status, 400);
  }
  EXPECT_EQ(budget.buffered_bytes(), 0);
}

TEST_F(ResponseProducerTest, OutputsThatPileUpAreOneTask) {
  const auto producer =
      Produce(R"({"prompt": "abc", "max_tokens": 100, "stream": true, "n": 2, "temperature": 1})");
  ASSERT_TRUE(engine_->WaitIdle());
  ASSERT_EQ(tasks_.count(), 1u);  // 200 outputs wait
  EXPECT_EQ(producer->Take().bytes, "");
  tasks_.RunOne();
  while (tasks_.count() > 0) tasks_.RunOne();
  EXPECT_EQ(ready_, 1);
  const ResponseProducer::Output output = producer->Take();
  EXPECT_TRUE(output.done);
  EXPECT_FALSE(output.error.has_value());
  // Every token of both choices, each choice's in order.
  std::string text[2];
  for (absl::string_view event : absl::StrSplit(output.bytes, "\n\n", absl::SkipEmpty())) {
    ASSERT_TRUE(absl::ConsumePrefix(&event, "data: "));
    if (event == "[DONE]") continue;
    const Json choice = Json::parse(event)["choices"][0];
    text[choice["index"].get<int>()] += choice["text"].get<std::string>();
  }
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += "abc"[i % 3];
  EXPECT_EQ(text[0], expected);
  EXPECT_EQ(text[1], expected);
}

TEST_F(ResponseProducerTest, AResponseThatIsNotWrittenFastEnoughEnds) {
  limits_.max_queued_output_bytes = 1024;
  for (const char* stream : {"false", "true"}) {
    const auto producer =
        Produce(absl::StrCat(R"({"prompt": "abc", "max_tokens": 400, "stream": )", stream, "}"));
    while (engine_->num_open() > 0) absl::SleepFor(absl::Milliseconds(1));
    while (tasks_.count() > 0) tasks_.RunOne();
    const ResponseProducer::Output output = producer->Take();
    EXPECT_TRUE(output.done);
    const std::string message =
        output.error.has_value() ? absl::StrCat(output.error->status, output.error->message) : output.bytes;
    EXPECT_TRUE(absl::StrContains(message, "503")) << message;
    EXPECT_TRUE(absl::StrContains(message, "The server is too busy to write the response.")) << message;
  }
}

TEST_F(ResponseProducerTest, OneTaskAtATimeWhateverComesMeanwhile) {
  const auto producer = Produce(R"({"prompt": "abc", "max_tokens": 500, "stream": true})");
  std::string bytes;
  for (bool done = false; !done;) {
    ASSERT_LE(tasks_.count(), 1u);
    if (tasks_.count() == 0) {
      absl::SleepFor(absl::Microseconds(100));
      continue;
    }
    tasks_.RunOne();
    ResponseProducer::Output output = producer->Take();
    bytes += output.bytes;
    done = output.done;
  }
  EXPECT_TRUE(absl::EndsWith(bytes, "data: [DONE]\n\n"));
}

TEST_F(ResponseProducerTest, DroppedBeforeItsEndItAborts) {
  std::shared_ptr<ResponseProducer> producer = Produce(R"({"prompt": "abc", "max_tokens": 4000})");
  while (tasks_.count() == 0) absl::SleepFor(absl::Microseconds(100));
  producer.reset();
  EXPECT_TRUE(engine_->WaitIdle());
  EXPECT_EQ(engine_->num_aborted(), 1);
  tasks_.RunOne();  // the producer is gone
}

TEST_F(ResponseProducerTest, AnErrorBeforeTheFirstByteIsNoStream) {
  engine_->FailAfter(0, absl::UnavailableError("gone"));
  const auto producer = Produce(R"({"prompt": "abc", "max_tokens": 40, "stream": true})");
  ASSERT_TRUE(engine_->WaitIdle());
  while (tasks_.count() > 0) tasks_.RunOne();
  const ResponseProducer::Output output = producer->Take();
  EXPECT_TRUE(output.done);
  EXPECT_EQ(output.bytes, "");
  ASSERT_TRUE(output.error.has_value());
  EXPECT_EQ(output.error->status, 503);
}

TEST(OutputQueue, IsBoundedInBytesAndKeepsTheEnd) {
  int ready = 0;
  OutputQueue queue(10'000, [&] { ++ready; });
  RequestOutput big{.token_ids = {1}};
  big.logprobs.resize(1);
  big.logprobs[0].token_ids.assign(1000, 1);
  big.logprobs[0].logprobs.assign(1000, -1.0f);
  queue.Push({0, big});  // 8 kB
  queue.Push({0, big});
  EXPECT_FALSE(queue.overflowed());
  queue.Push({1, big});
  EXPECT_TRUE(queue.overflowed());
  queue.Push({1, RequestOutput{.finish_reason = FinishReason::kAbort}});
  const auto outputs = queue.TakeAll();
  ASSERT_EQ(outputs.size(), 3u);
  EXPECT_EQ(outputs[2].index, 1);
  EXPECT_EQ(outputs[2].output.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(ready, 1);
  // TakeAll makes room again.
  queue.Push({0, big});
  EXPECT_EQ(ready, 2);
  EXPECT_EQ(queue.TakeAll().size(), 1u);
}

TEST(OutputQueue, WhatIsPushedTogetherIsTakenTogether) {
  std::vector<size_t> taken;
  OutputQueue* place = nullptr;
  OutputQueue queue(10'000, [&] { taken.push_back(place->TakeAll().size()); });
  place = &queue;
  OutputQueue::Outputs outputs;
  for (int32_t index = 0; index < 3; ++index) outputs.push_back({index, RequestOutput()});
  queue.PushAll(std::move(outputs));
  queue.Push({3, RequestOutput()});
  EXPECT_EQ(taken, (std::vector<size_t>{3, 1}));
}

TEST(OutputThreads, StopDropsWhatWaitsAndWhatComesLater) {
  Gate gate;
  gate.Close();
  int ran = 0;
  OutputThreads threads(1);
  threads.Post([&] {
    gate.Pass();
    ++ran;
  });
  gate.AwaitWaiter();
  auto held = std::make_shared<int>();
  threads.Post([&ran, held] { ran += 100; });
  std::thread stopper([&] { threads.Stop(); });
  while (held.use_count() > 1) absl::SleepFor(absl::Milliseconds(1));  // Stop has dropped it
  gate.Open();
  stopper.join();
  threads.Post([&] { ran += 100; });
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace somnus
