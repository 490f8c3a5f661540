// POST /weight_checker over checksums that the test sets, and the routes of the KV cache's memory.

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/api/api_server_fixture.h"

namespace somnus {
namespace {

class WeightCheckerTest : public ApiServerTest {
 protected:
  void SetUp() override {
    Start();
    ServedModel model = FakeModel(engine_);
    model.weight_checksums = [this]() -> absl::StatusOr<ModelChecksums> {
      if (!status_.ok()) return status_;
      return sums_;
    };
    server_->SetModel(std::move(model));
    sums_ = {{.replica = 0, .rank = 0, .weights_version = 7, .tensors = {{"a+b", 16, 1}, {"c", 4, 2}}},
             {.replica = 0, .rank = 1, .weights_version = 7, .tensors = {{"a+b", 16, 3}, {"c", 4, 2}}}};
  }
  Json Check(const std::string& query) {
    const HttpReply reply = Admin("POST", "/weight_checker?" + query);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  std::string Refusal(const std::string& query, int status) {
    const HttpReply reply = Admin("POST", "/weight_checker?" + query);
    EXPECT_EQ(reply.status, status) << reply.body;
    return Json::parse(reply.body)["error"]["message"];
  }

  ModelChecksums sums_;
  absl::Status status_;
};

TEST_F(WeightCheckerTest, TellsTheChecksumsOfEveryRank) {
  const Json answer = Check("action=checksum");
  EXPECT_EQ(answer["success"], true);
  EXPECT_EQ(answer["weight_version"], 7);
  EXPECT_TRUE(answer["replicas_agree"].is_null());
  ASSERT_EQ(answer["ranks"].size(), 2u);
  EXPECT_EQ(answer["ranks"][1]["rank"], 1);
  EXPECT_EQ(answer["ranks"][1]["num_tensors"], 2);
  EXPECT_EQ(answer["ranks"][1]["num_bytes"], 20);
  EXPECT_NE(answer["ranks"][0]["checksum"], answer["ranks"][1]["checksum"]);
  EXPECT_FALSE(answer["ranks"][0].contains("tensors"));
  EXPECT_EQ(Check("action=checksum")["checksum"], answer["checksum"]);
  EXPECT_EQ(Check("action=checksum&tensors=true")["ranks"][1]["tensors"],
            Json({{"a+b", "0000000000000003"}, {"c", "0000000000000002"}}));
  const HttpReply by_body = Admin("POST", "/weight_checker", R"({"action": "checksum"})");
  EXPECT_EQ(by_body.status, 200) << by_body.body;
}

TEST_F(WeightCheckerTest, ComparesWithTheSnapshot) {
  EXPECT_TRUE(absl::StrContains(Refusal("action=compare", 409), "snapshot"));
  const Json kept = Check("action=snapshot");
  EXPECT_EQ(Check("action=compare")["checksum"], kept["checksum"]);
  sums_[1].tensors[0].checksum = 4;
  sums_[0].weights_version = sums_[1].weights_version = 8;
  const std::string message = Refusal("action=compare", 409);
  EXPECT_TRUE(absl::StrContains(message, "1 tensors differ: a+b of rank 1")) << message;
  EXPECT_NE(Check("action=checksum")["checksum"], kept["checksum"]) << "a checksum keeps nothing";
  Refusal("action=compare", 409);
  Check("action=snapshot");
  Check("action=compare");
  sums_.pop_back();
  EXPECT_TRUE(absl::StrContains(Refusal("action=compare", 409), "there are 1 ranks, and there were 2"));
}

TEST_F(WeightCheckerTest, ComparesWithABaselineThatTheClientKeeps) {
  sums_[1].stage = 1;  // of a pipeline of two stages
  const Json kept = Check("action=checksum")["checksums"];
  EXPECT_EQ(kept, Json({{"dp0:pp0:pcp0:tp0:a+b", "0000000000000001"},
                        {"dp0:pp0:pcp0:tp0:c", "0000000000000002"},
                        {"dp0:pp1:pcp0:tp0:a+b", "0000000000000003"},
                        {"dp0:pp1:pcp0:tp0:c", "0000000000000002"}}));
  const auto compare = [&](const Json& baseline) {
    const HttpReply reply =
        Admin("POST", "/weight_checker", Json{{"action", "compare"}, {"baseline", baseline}}.dump());
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  };
  EXPECT_EQ(compare(kept), (Json{{"match", true}, {"mismatches", Json::array()}}));
  Json other = kept;
  other.erase("dp0:pp0:pcp0:tp0:c");
  other["dp0:pp1:pcp0:tp0:c"] = "0";
  other["more"] = "0";
  EXPECT_EQ(compare(other),
            (Json{{"match", false}, {"mismatches", {"dp0:pp0:pcp0:tp0:c", "dp0:pp1:pcp0:tp0:c", "more"}}}));
  for (const char* baseline : {R"("x")", R"(["x"])", R"({"x": 1})"}) {
    const HttpReply refused = Admin("POST", "/weight_checker",
                                    absl::StrCat(R"({"action": "compare", "baseline": )", baseline, "}"));
    EXPECT_EQ(refused.status, 400) << refused.body;
    EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "baseline");
  }
}

TEST_F(WeightCheckerTest, SaysWhetherReplicasAgree) {
  sums_.push_back(sums_[0]);
  sums_.push_back(sums_[1]);
  sums_[2].replica = sums_[3].replica = 1;
  EXPECT_EQ(Check("action=checksum")["replicas_agree"], true);
  sums_[3].tensors[1].checksum = 9;
  EXPECT_EQ(Check("action=checksum")["replicas_agree"], false);
}

TEST_F(WeightCheckerTest, ErrorsAreNamed) {
  EXPECT_TRUE(absl::StrContains(Refusal("action=other", 400), "action"));
  EXPECT_TRUE(absl::StrContains(Refusal("action=reset", 400), "load_weights=false"));
  EXPECT_TRUE(absl::StrContains(Refusal("", 400), "action"));
  Refusal("action=checksum&tensors=perhaps", 400);
  Refusal("action=checksum&more=1", 400);
  status_ = absl::FailedPreconditionError("rank 1: ChecksumWeights: the memory of weights sleeps");
  EXPECT_TRUE(absl::StrContains(Refusal("action=checksum", 409), "sleeps"));
  status_ = absl::AbortedError("the weights have changed meanwhile");
  Refusal("action=snapshot", 409);
  status_ = absl::UnavailableError("the workers are being replaced");
  Refusal("action=checksum", 503);
  EXPECT_EQ(Send("POST", "/weight_checker?action=checksum").status, 404) << "clients' listener";
}

TEST_F(WeightCheckerTest, TheKvCachesMemoryIsReleasedAndComesBack) {
  const HttpReply released = Admin("POST", "/release_kv_cache_memory");
  ASSERT_EQ(released.status, 200) << released.body;
  EXPECT_EQ(Json::parse(released.body)["status"], "kv_cache_released");
  EXPECT_EQ(Admin("POST", "/release_kv_cache_memory?mode=perhaps").status, 400);
  EXPECT_EQ(Admin("POST", "/release_kv_cache_memory?level=2").status, 400);
  const HttpReply resumed = Admin("POST", "/resume_kv_cache_memory");
  ASSERT_EQ(resumed.status, 200) << resumed.body;
  EXPECT_EQ(Json::parse(resumed.body)["tags_woken"], Json({"kv_cache"}));
}

}  // namespace
}  // namespace somnus
