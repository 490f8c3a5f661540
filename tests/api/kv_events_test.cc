// GET /kv_events: KV events as server-sent events, where they begin, and who may follow them.

#include "absl/strings/str_split.h"
#include "coordinator/engine/kv_event_log.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

using Kind = BlockEvent::Kind;

class KvEventsTest : public ApiServerTest {
 protected:
  void ServeWithEvents(ApiServerOptions options = {}) {
    Start(std::move(options));
    ServedModel model = FakeModel(engine_);
    model.kv_events = log_;
    server_->SetModel(std::move(model));
  }
  void Append(BlockEvent event) { log_->Append(0, {std::move(event)}, absl::FromUnixMillis(1'500)); }
  void Store(uint64_t id, uint64_t parent = 0, const std::string& salt = "") {
    Append({.kind = Kind::kStored,
            .content_ids = {id},
            .parent_content_id = parent,
            .tokens = {1, 2},
            .salt = salt});
  }
  // Reads the whole of a stream that the log's end ends.
  HttpReply Follow(const std::string& query, const std::string& headers = "") {
    HttpClient client(server_->admin_port());
    client.Write(RequestText("GET", "/kv_events" + query, "", headers));
    EXPECT_TRUE(client.ReadUntil("\r\n\r\n"));
    log_->End();
    return client.ReadReply();
  }
  static std::vector<Json> Batches(const HttpReply& reply) {
    std::vector<Json> batches;
    for (const absl::string_view line : absl::StrSplit(reply.body, '\n')) {
      if (absl::StartsWith(line, "data: ")) batches.push_back(Json::parse(line.substr(6)));
    }
    return batches;
  }
  void ExpectRefused(const std::string& query, int status, const Json& param,
                     const std::string& headers = "") {
    const HttpReply reply = Admin("GET", "/kv_events" + query, "", headers);
    EXPECT_EQ(reply.status, status) << query << " " << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], param) << reply.body;
  }

  std::shared_ptr<KvEventLog> log_ = std::make_shared<KvEventLog>(
      KvEventLogOptions{.max_events = 16, .block_size = 2, .first_sequence = 10});
};

TEST_F(KvEventsTest, BatchesHaveVllmsShape) {
  ServeWithEvents();
  Store(1, 0, "tenant");
  Store(2, 1);
  Append({.kind = Kind::kRemoved, .content_ids = {2, 1}});
  Append(BlockEvent{});
  Append({.kind = Kind::kStored, .medium = CacheMedium::kHost, .content_ids = {3}, .tokens = {5, 6}});
  Append({.kind = Kind::kRemoved, .medium = CacheMedium::kHost, .content_ids = {3}});
  const HttpReply reply = Follow("?from_seq=10");
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(absl::StrContains(reply.head, "Content-Type: text/event-stream")) << reply.head;
  const std::vector<Json> batches = Batches(reply);
  ASSERT_EQ(batches.size(), 6u) << reply.body;
  EXPECT_EQ(batches[0], Json::parse(R"({
    "seq": 10, "ts": 1.5, "data_parallel_rank": 0,
    "events": [{"type": "BlockStored", "block_hashes": [1], "parent_block_hash": null, "token_ids": [1, 2],
                "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null,
                "extra_keys": [["tenant"]]}]})"));
  EXPECT_EQ(batches[1]["events"][0]["parent_block_hash"], 1);
  EXPECT_EQ(batches[1]["events"][0]["extra_keys"], nullptr);
  EXPECT_EQ(batches[2]["events"],
            Json::parse(R"([{"type": "BlockRemoved", "block_hashes": [2, 1], "medium": "GPU"}])"));
  EXPECT_EQ(batches[3]["events"], Json::parse(R"([{"type": "AllBlocksCleared"}])"));
  EXPECT_EQ(batches[4]["events"][0]["medium"], "CPU");
  EXPECT_EQ(batches[5]["events"],
            Json::parse(R"([{"type": "BlockRemoved", "block_hashes": [3], "medium": "CPU"}])"));
  EXPECT_TRUE(absl::StartsWith(reply.body, "id: 10\ndata: {")) << reply.body;
  EXPECT_TRUE(absl::EndsWith(reply.body, ": the server ends\n\n"));
}

TEST_F(KvEventsTest, AStreamBeginsWithASnapshotAndGoesOn) {
  ServeWithEvents();
  Store(1);
  Store(2, 1);
  HttpClient client(server_->admin_port());
  client.Write(RequestText("GET", "/kv_events", ""));
  ASSERT_TRUE(client.ReadUntil("\"snapshot_parts_left\":0}\n\n"));
  Store(3, 2);
  ASSERT_TRUE(client.ReadUntil("\"block_hashes\":[3]")) << "at once";
  log_->End();
  const HttpReply reply = client.ReadReply();
  const std::vector<Json> batches = Batches(reply);
  ASSERT_EQ(batches.size(), 2u) << reply.body;
  EXPECT_EQ(batches[0]["seq"], 11);
  EXPECT_EQ(batches[0]["events"][0]["type"], "AllBlocksCleared");
  EXPECT_EQ(batches[0]["events"][1]["block_hashes"], Json::parse("[1, 2]"));
  EXPECT_EQ(batches[1]["seq"], 12);
  EXPECT_FALSE(batches[1].contains("snapshot_parts_left"));
}

TEST_F(KvEventsTest, AClientThatComesBackGoesOnBehindItsLastEvent) {
  ServeWithEvents();
  for (uint64_t id = 1; id <= 3; ++id) Store(id);
  const std::vector<Json> batches = Batches(Follow("?from_seq=10", "Last-Event-ID: 11\r\n"));
  ASSERT_EQ(batches.size(), 1u) << "the header says more than the address, which stays the same";
  EXPECT_EQ(batches[0]["seq"], 12);
}

TEST_F(KvEventsTest, AClientWhoseLastEventTheLogHasForgottenBeginsAgain) {
  log_ =
      std::make_shared<KvEventLog>(KvEventLogOptions{.max_events = 1, .block_size = 2, .first_sequence = 10});
  ServeWithEvents();
  for (uint64_t id = 1; id <= 5; ++id) Store(id);
  const std::vector<Json> batches = Batches(Follow("", "Last-Event-ID: 10\r\n"));
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0]["seq"], 14);
  EXPECT_EQ(batches[0]["snapshot_parts_left"], 0);
  EXPECT_EQ(batches[0]["events"].size(), 1u + 5u);
  EXPECT_EQ(batches[0]["events"][0]["type"], "AllBlocksCleared");
}

TEST_F(KvEventsTest, AnEmptyStreamHasItsHeadAtOnceAndComments) {
  ServeWithEvents(ApiServerOptions{.limits = {.sse_keepalive = absl::Milliseconds(5)}});
  HttpClient client(server_->admin_port());
  client.Write(RequestText("GET", "/kv_events?from_seq=10", ""));
  EXPECT_TRUE(client.ReadUntil(": keep-alive\n\n"));
  log_->End();
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST_F(KvEventsTest, ErrorsNameTheirFields) {
  ServeWithEvents();
  for (const char* bad : {"x", "-1", "1.5", "", "%201", "9223372036854775808", "9223372036854775807"})
    ExpectRefused(absl::StrCat("?from_seq=", bad), 400, "from_seq");
  ExpectRefused("", 400, "Last-Event-ID", "Last-Event-ID: x\r\n");
  ExpectRefused("?from=1", 400, "from");
  ExpectRefused("?model=other", 404, "model");
  EXPECT_EQ(Admin("POST", "/kv_events").status, 405);
  EXPECT_EQ(Send("GET", "/kv_events").status, 404) << "it has the tokens of prompts";
}

TEST_F(KvEventsTest, WithoutALogThereAreNone) {
  Serve();
  ExpectRefused("", 404, nullptr);
}

TEST_F(KvEventsTest, OperatorsKeyIsWanted) {
  ServeWithEvents(ApiServerOptions{.admin_api_keys = ApiKeys("secret")});
  ExpectRefused("", 401, nullptr);
  EXPECT_EQ(Follow("", "Authorization: Bearer secret\r\n").status, 200);
}

TEST_F(KvEventsTest, AClientThatLeavesMakesRoomForAnother) {
  ServeWithEvents(ApiServerOptions{.limits = {.max_kv_event_watchers = 2}});
  const auto follow = [&] {
    auto client = std::make_unique<HttpClient>(server_->admin_port());
    client->Write(RequestText("GET", "/kv_events", ""));
    EXPECT_TRUE(client->ReadUntil("snapshot_parts_left"));
    return client;
  };
  auto first = follow();
  const auto second = follow();
  ExpectRefused("", 429, nullptr);
  first.reset();
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  for (;;) {
    HttpClient third(server_->admin_port());
    third.Write(RequestText("GET", "/kv_events", ""));
    ASSERT_TRUE(third.ReadUntil("\r\n\r\n"));
    if (absl::StrContains(third.buffered(), " 200 ")) break;
    ASSERT_LT(absl::Now(), deadline);
    absl::SleepFor(absl::Milliseconds(2));
  }
}

}  // namespace
}  // namespace somnus
