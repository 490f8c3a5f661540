// Adapters of a served model: their names, their places at the workers, and the wait for open requests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "coordinator/openai/adapter_registry.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class EngineAdaptersTest : public ::testing::Test {
 protected:
  EngineAdaptersTest() : options_(SmallEngine()), executor_(SmallWorker(options_)) {
    executor_.SetRecovery(FakeExecutor::Recovery::kSucceeds);
    engine_ = std::make_shared<EngineLoop>(options_, &executor_, nullptr);
  }
  ~EngineAdaptersTest() override { engine_->DrainAndStop(absl::ZeroDuration()); }

  std::unique_ptr<AdapterRegistry> Registry(int32_t max_adapters,
                                            absl::Duration unload_timeout = absl::ZeroDuration()) {
    return std::make_unique<AdapterRegistry>(
        engine_, AdapterRegistryOptions{.max_adapters = max_adapters, .unload_timeout = unload_timeout});
  }
  // A request with the adapter, which is open until the pause ends.
  Ticket OpenRequest(const AdapterRegistry& registry, const std::string& name) {
    EXPECT_TRUE(engine_->Pause({}).ok());
    Ticket ticket = MakeTicket("open", 5, 3);
    ticket.request.adapter = registry.Find(name);
    EXPECT_TRUE(engine_->Submit(ticket.request).ok());
    ticket.request.adapter.reset();
    return ticket;
  }
  std::string LastCall() const { return executor_.lifecycle_calls().back(); }

  const EngineOptions options_;
  FakeExecutor executor_;
  std::shared_ptr<EngineLoop> engine_;
};

std::vector<std::string> Names(const AdapterRegistry& registry) {
  std::vector<std::string> names;
  for (const auto& adapter : registry.List()) names.push_back(adapter->name);
  return names;
}

TEST_F(EngineAdaptersTest, NamesAreShownOnceTheWorkersHaveTheAdapter) {
  const auto registry = Registry(2);
  ASSERT_EQ(registry->Load("poet", "/poet", false), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 1=poet");
  ASSERT_EQ(registry->Load("lawyer", "/lawyer", false), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 1=poet 2=lawyer");
  EXPECT_THAT(Names(*registry), ElementsAre("lawyer", "poet"));
  EXPECT_NE(registry->Find("poet")->salt, registry->Find("lawyer")->salt);
  const absl::Status full = registry->Load("third", "/third", false);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("--max-cpu-loras"));
  ASSERT_EQ(registry->Unload("poet"), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 2=lawyer");
  ASSERT_EQ(registry->Load("third", "/third", false), absl::OkStatus());
  EXPECT_EQ(registry->Find("third")->slot, 1) << "the place of the one that was unloaded";
}

TEST_F(EngineAdaptersTest, BadCallsChangeNothing) {
  const auto registry = Registry(2);
  ASSERT_EQ(registry->Load("poet", "/poet", false), absl::OkStatus());
  const size_t num_calls = executor_.lifecycle_calls().size();
  EXPECT_TRUE(absl::IsAlreadyExists(registry->Load("poet", "/other", false)));
  for (const auto& [name, path] : {std::pair("", "/x"), std::pair("x", ""), std::pair("\xff", "/x")})
    EXPECT_TRUE(absl::IsInvalidArgument(registry->Load(name, path, false)));
  EXPECT_TRUE(absl::IsNotFound(registry->Unload("nobody")));
  EXPECT_EQ(executor_.lifecycle_calls().size(), num_calls);
  executor_.FailNextLifecycleCall(absl::NotFoundError("rank 1: adapter 'x'"));
  EXPECT_TRUE(absl::IsNotFound(registry->Load("x", "/x", false)));
  EXPECT_THAT(Names(*registry), ElementsAre("poet"));
  ASSERT_EQ(registry->Load("y", "/y", false), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 1=poet 2=y");
}

TEST_F(EngineAdaptersTest, AnUnloadWaitsForOpenRequests) {
  const auto registry = Registry(1);
  ASSERT_EQ(registry->Load("poet", "/poet", false), absl::OkStatus());
  const Ticket ticket = OpenRequest(*registry, "poet");
  const absl::Status busy = registry->Unload("poet");
  EXPECT_TRUE(absl::IsDeadlineExceeded(busy)) << busy;
  EXPECT_THAT(Names(*registry), ElementsAre("poet")) << "the adapter stays";
  const auto patient = Registry(1, absl::Minutes(1));
  ASSERT_EQ(patient->Load("poet", "/poet", false), absl::OkStatus());
  Ticket other = MakeTicket("other", 5, 3);
  other.request.adapter = patient->Find("poet");
  ASSERT_TRUE(engine_->Submit(other.request).ok());
  other.request.adapter.reset();
  std::future<absl::Status> unloaded =
      std::async(std::launch::async, [&] { return patient->Unload("poet"); });
  while (patient->Find("poet") != nullptr) absl::SleepFor(absl::Milliseconds(1));
  ASSERT_TRUE(engine_->Resume().ok());
  ASSERT_TRUE(other.sink->Wait());
  EXPECT_EQ(other.sink->tokens(), Reference(other));
  EXPECT_EQ(unloaded.get(), absl::OkStatus());
}

TEST_F(EngineAdaptersTest, ALoadInPlaceLetsOpenRequestsEndWithTheOldOne) {
  const auto registry = Registry(2);
  ASSERT_EQ(registry->Load("poet", "/old", false), absl::OkStatus());
  const Ticket ticket = OpenRequest(*registry, "poet");
  ASSERT_EQ(registry->Load("poet", "/new", true), absl::OkStatus());
  EXPECT_EQ(LastCall(), "adapters 1=poet 2=poet");
  EXPECT_EQ(registry->Find("poet")->path, "/new");
  ASSERT_EQ(registry->Load("poet", "/newest", true), absl::OkStatus()) << "nobody uses the new one";
  EXPECT_EQ(LastCall(), "adapters 1=poet 2=poet");
  ASSERT_TRUE(engine_->Resume().ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  while (LastCall() != "adapters 2=poet 1=poet") {  // the place of the old one is free again
    ASSERT_EQ(registry->Load("poet", "/last", true), absl::OkStatus());
  }
}

TEST_F(EngineAdaptersTest, WithoutAFreePlaceALoadInPlaceWaits) {
  const auto registry = Registry(1);
  ASSERT_EQ(registry->Load("poet", "/old", false), absl::OkStatus());
  const Ticket ticket = OpenRequest(*registry, "poet");
  EXPECT_TRUE(absl::IsDeadlineExceeded(registry->Load("poet", "/new", true)));
  EXPECT_EQ(registry->Find("poet")->path, "/old");
  ASSERT_TRUE(engine_->Resume().ok());
  ASSERT_TRUE(ticket.sink->Wait());
  while (!registry->Load("poet", "/new", true).ok()) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(LastCall(), "adapters 1=poet");
  EXPECT_EQ(registry->Find("poet")->path, "/new");
  executor_.FailNextLifecycleCall(absl::NotFoundError("no such files"));
  EXPECT_TRUE(absl::IsNotFound(registry->Load("poet", "/nowhere", true)));
  EXPECT_EQ(registry->Find("poet")->path, "/new") << "the adapter of before is there again";
}

TEST_F(EngineAdaptersTest, ARecoveryBringsAdaptersBack) {
  const auto registry = Registry(2);
  ASSERT_EQ(registry->Load("poet", "/poet", false), absl::OkStatus());
  executor_.Lose(absl::UnavailableError("rank 1 is gone"));
  const Ticket ticket = MakeTicket("after", 5, 3);
  ASSERT_TRUE(engine_->Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  const std::vector<HeldAdapter> held = executor_.recovered().adapters;
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].path, "/poet");
  EXPECT_EQ(held[0].id, registry->Find("poet")->id);
}

}  // namespace
}  // namespace somnus
