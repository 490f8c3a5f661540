// KvEventService: what a watcher gets, where it begins, and who is refused.

#include "coordinator/engine/kv_event_log.h"
#include "proto/kv_events.grpc.pb.h"
#include "tests/api/grpc_services_fixture.h"

namespace somnus {
namespace {

using Kind = BlockEvent::Kind;

class GrpcKvEventsTest : public GrpcServicesTest {
 protected:
  void SetUp() override {
    kv_events_ = std::make_shared<KvEventLog>(
        KvEventLogOptions{.max_events = 100, .block_size = 2, .first_sequence = 10});
    Begin(ApiLimits());
  }
  void Begin(const ApiLimits& limits) {
    Start(limits);
    stub_ = v1::KvEventService::NewStub(control_channel_);
  }
  void Append(BlockEvent event) { kv_events_->Append(0, {std::move(event)}, absl::FromUnixSeconds(7)); }
  void Store(uint64_t id, uint64_t parent = 0, const std::string& salt = "") {
    Append({.kind = Kind::kStored,
            .content_ids = {id},
            .parent_content_id = parent,
            .tokens = {1, 2},
            .salt = salt});
  }
  // All batches until the log's end, which comes at once.
  grpc::Status WatchAll(const v1::WatchKvEventsRequest& request, std::vector<v1::KvEventBatch>* batches) {
    kv_events_->End();
    grpc::ClientContext context;
    const auto reader = stub_->Watch(&context, request);
    for (v1::KvEventBatch batch; reader->Read(&batch);) batches->push_back(batch);
    return reader->Finish();
  }
  grpc::Status Refused(const v1::WatchKvEventsRequest& request) {
    std::vector<v1::KvEventBatch> batches;
    const grpc::Status status = WatchAll(request, &batches);
    EXPECT_TRUE(batches.empty());
    return status;
  }

  std::unique_ptr<v1::KvEventService::Stub> stub_;
};

TEST_F(GrpcKvEventsTest, BatchesHaveVllmsEvents) {
  Store(1, 0, "tenant");
  Store(2, 1);
  Append({.kind = Kind::kRemoved, .content_ids = {2}});
  Append(BlockEvent{});
  Append({.kind = Kind::kStored, .medium = CacheMedium::kHost, .content_ids = {3}, .tokens = {5, 6}});
  Append({.kind = Kind::kRemoved, .medium = CacheMedium::kHost, .content_ids = {3}});
  v1::WatchKvEventsRequest request;
  request.set_from_sequence(10);
  std::vector<v1::KvEventBatch> batches;
  ASSERT_TRUE(WatchAll(request, &batches).ok());
  ASSERT_EQ(batches.size(), 6u);
  EXPECT_EQ(batches[0].sequence(), 10);
  EXPECT_EQ(batches[0].timestamp(), 7);
  EXPECT_FALSE(batches[0].snapshot());
  ASSERT_EQ(batches[0].events_size(), 1);
  const v1::BlockStored& first = batches[0].events(0).block_stored();
  EXPECT_EQ(first.block_hashes(0), 1u);
  EXPECT_FALSE(first.has_parent_block_hash());
  EXPECT_EQ(first.token_ids_size(), 2);
  EXPECT_EQ(first.block_size(), 2);
  EXPECT_EQ(first.medium(), "GPU");
  EXPECT_EQ(first.cache_salt(), "tenant");
  EXPECT_EQ(batches[1].events(0).block_stored().parent_block_hash(), 1u);
  EXPECT_EQ(batches[2].events(0).block_removed().block_hashes(0), 2u);
  EXPECT_EQ(batches[2].events(0).block_removed().medium(), "GPU");
  EXPECT_TRUE(batches[3].events(0).has_all_blocks_cleared());
  EXPECT_EQ(batches[4].events(0).block_stored().medium(), "CPU");
  EXPECT_EQ(batches[5].events(0).block_removed().medium(), "CPU");
}

TEST_F(GrpcKvEventsTest, AWatcherBeginsWithASnapshotAndGoesOn) {
  Store(1);
  grpc::ClientContext context;
  const auto reader = stub_->Watch(&context, {});
  v1::KvEventBatch batch;
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_TRUE(batch.snapshot());
  EXPECT_EQ(batch.snapshot_parts_left(), 0);
  EXPECT_EQ(batch.sequence(), 10);
  ASSERT_EQ(batch.events_size(), 2);
  EXPECT_TRUE(batch.events(0).has_all_blocks_cleared());
  Store(2, 1);
  ASSERT_TRUE(reader->Read(&batch));
  EXPECT_EQ(batch.sequence(), 11);
  EXPECT_FALSE(batch.snapshot());
  kv_events_->End();
  EXPECT_FALSE(reader->Read(&batch));
  EXPECT_TRUE(reader->Finish().ok()) << "the server ends";
}

TEST_F(GrpcKvEventsTest, ErrorsNameTheirFields) {
  v1::WatchKvEventsRequest request;
  request.set_from_sequence(-1);
  const grpc::Status negative = Refused(request);
  EXPECT_EQ(negative.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(negative.error_message(), "from_sequence: must be at least 0") << "the name comes once";
  request.clear_from_sequence();
  request.set_model("other");
  EXPECT_EQ(Refused(request).error_code(), grpc::StatusCode::NOT_FOUND);
  kv_events_ = nullptr;
  Begin(ApiLimits());
  grpc::ClientContext context;
  EXPECT_EQ(stub_->Watch(&context, {})->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(GrpcKvEventsTest, ClientsListenerDoesNotHaveIt) {
  const auto stub = v1::KvEventService::NewStub(channel_);
  grpc::ClientContext context;
  EXPECT_EQ(stub->Watch(&context, {})->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(GrpcKvEventsTest, AWatcherThatLeavesMakesRoomForAnother) {
  Begin(ApiLimits{.max_kv_event_watchers = 1});
  auto context = std::make_unique<grpc::ClientContext>();
  auto reader = stub_->Watch(context.get(), {});
  v1::KvEventBatch batch;
  ASSERT_TRUE(reader->Read(&batch));
  {
    grpc::ClientContext other;
    const grpc::Status refused = stub_->Watch(&other, {})->Finish();
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(refused.error_message(), "1 clients follow KV events already, and no more may");
  }
  context->TryCancel();
  while (reader->Read(&batch)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  for (bool open = false; !open;) {
    ASSERT_LT(absl::Now(), deadline) << "the place is still taken";
    grpc::ClientContext other;
    const auto again = stub_->Watch(&other, {});
    open = again->Read(&batch);
    other.TryCancel();
    while (again->Read(&batch)) {
    }
    again->Finish();
  }
}

}  // namespace
}  // namespace somnus
