#include "tools/cli/model_list.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tools/cli/text_table.h"

namespace somnus::cli {
namespace {

v1::ListModelStatusResponse Two() {
  v1::ListModelStatusResponse models;
  v1::ModelStatus* chat = models.add_models();
  chat->set_model("chat");
  chat->set_state(v1::ENGINE_STATE_AWAKE);
  chat->set_resident_bytes(3 << 20);
  chat->set_num_requests_running(12);
  chat->set_total_blocks(200);
  chat->set_free_blocks(150);
  chat->set_mapped_blocks(200);
  chat->set_max_blocks(1000);
  chat->set_prompt_tokens(1000);
  chat->set_generation_tokens(int64_t{1} << 40);
  chat->set_pinned(true);
  chat->set_ttft_target_s(2);
  v1::ModelStatus* other = models.add_models();
  other->set_model("a-longer-name");
  other->set_state(v1::ENGINE_STATE_ASLEEP);
  other->set_sleep_level(2);
  other->set_paused(true);
  other->set_num_requests_waiting(1);
  other->set_oldest_wait_s(12.34);
  other->set_priority(-3);
  other->set_host_bytes(5 << 19);
  return models;
}

TEST(ModelListTest, ColumnsAreAsWideAsWhatIsInThem) {
  EXPECT_EQ(ModelTable(Two(), kAnyWidth),
            "model          state                      memory     host  running  waiting  oldest  blocks    "
            "mapped\n"
            "chat           awake                     3.0 MiB  0.0 MiB       12        0       -     25%  "
            "200/1000  "
            "pinned, ttft 2s\n"
            "a-longer-name  asleep (level 2), paused  0.0 MiB  2.5 MiB        0        1  12.3 s       -     "
            "    -  "
            "priority -3\n");
}

TEST(ModelListTest, NamesAndErrorsCannotMoveTheCursor) {
  v1::ListModelStatusResponse models = Two(), before;
  models.mutable_models(0)->set_model("gr\u00fcn\033[2J");
  models.mutable_models(1)->set_error("bad\r\xff");
  (*models.mutable_models(0)->mutable_scheduling()->mutable_preemptions_by_swap())["\033c"] = 1;
  const std::string table = ModelTable(models, kAnyWidth);
  EXPECT_NE(table.find("gr\u00fcn\\x1b[2J"), std::string::npos) << table;
  EXPECT_NE(table.find("bad\\x0d\ufffd"), std::string::npos) << table;
  for (const std::string& text : {table, SchedulingTable(models, before, absl::Seconds(1), kAnyWidth)})
    EXPECT_EQ(text.find_first_of("\033\r\xff"), std::string::npos) << text;
}

TEST(ModelListTest, ARowSaysWhyARequestWouldNotBeServedAndTheWayOut) {
  v1::ListModelStatusResponse models = Two();
  v1::ModelStatus* other = models.mutable_models(1);
  other->mutable_state_report()->set_why("an operator has called sleep");
  other->mutable_state_report()->set_way_out("somnus wake-up --model=a-longer-name");
  const std::string note =
      "priority -3, an operator has called sleep; somnus wake-up --model=a-longer-name\n";
  EXPECT_EQ(ModelTable(models, kAnyWidth).find(note), std::string::npos) << "a request wakes it";
  other->set_not_ready_reason("The engine is asleep.");
  EXPECT_NE(ModelTable(models, kAnyWidth).find(note), std::string::npos) << ModelTable(models, kAnyWidth);
  other->set_error("could not be woken");
  EXPECT_NE(ModelTable(models, kAnyWidth).find("priority -3, could not be woken\n"), std::string::npos);
}

TEST(ModelListTest, TokensPerSecondSinceTheLastLook) {
  const v1::ListModelStatusResponse before = Two();
  v1::ListModelStatusResponse now = before;
  now.mutable_models(0)->set_prompt_tokens(1100);
  now.mutable_models(0)->set_generation_tokens((int64_t{1} << 40) + 5);
  now.mutable_models(1)->set_model("new");
  now.mutable_models(1)->set_prompt_tokens(7);
  const std::string table = ModelTable(now, kAnyWidth, &before, absl::Seconds(2));
  EXPECT_NE(table.find("25%  200/1000      50.0       2.5  pinned"), std::string::npos) << table;
  EXPECT_NE(table.find("-         -         -         -  priority -3"), std::string::npos) << "it is new\n"
                                                                                           << table;
  // A server that was started again counts anew.
  now.mutable_models(0)->set_prompt_tokens(3);
  EXPECT_NE(ModelTable(now, kAnyWidth, &before, absl::Seconds(2)).find("25%  200/1000         -       2.5"),
            std::string::npos);
}

TEST(ModelListTest, WhatSchedulersHaveDoneSinceTheLastLook) {
  v1::ListModelStatusResponse before = Two();
  v1::SchedulingCounters* counters = before.mutable_models(0)->mutable_scheduling();
  (*counters->mutable_preemptions_by_swap())["no_blocks"] = 7;
  counters->set_prefix_cache_queries(1000);
  counters->set_prefix_cache_hits(1000);
  counters->set_first_scheduled(5);
  counters->set_queue_s(100);
  before.mutable_models(0)->mutable_latency()->set_num_further_tokens(1000);
  v1::ListModelStatusResponse now = before;
  counters = now.mutable_models(0)->mutable_scheduling();
  (*counters->mutable_preemptions_by_swap())["no_blocks"] = 10;
  (*counters->mutable_preemptions_by_recompute())["priority"] = 1;
  counters->set_swapped_out_blocks(30);
  counters->set_swapped_in_blocks(5);
  counters->set_copied_blocks(2);
  counters->set_watermark_refusals(1);
  counters->set_prefix_cache_queries(1100);
  counters->set_prefix_cache_hits(1025);
  counters->set_first_scheduled(9);
  counters->set_queue_s(101);
  counters->set_draft_tokens(8);
  counters->set_accepted_draft_tokens(6);
  v1::TokenLatencies* latency = now.mutable_models(0)->mutable_latency();
  latency->set_num_first_tokens(2);
  latency->set_first_token_s(2.5);
  latency->set_num_further_tokens(1100);
  latency->set_further_token_s(2.5);
  EXPECT_EQ(
      SchedulingTable(now, before, absl::Seconds(2), kAnyWidth),
      "model          preempted/s  out/s  in/s  copied/s  refused/s  cached    queue  TTFT  TPOT  guessed\n"
      "chat                   2.0   15.0   2.5       1.0        0.5     25%  0.250 s  1.2s  25ms      75%  "
      "no_blocks (swap) 3, priority (recompute) 1\n"
      "a-longer-name          0.0    0.0   0.0       0.0        0.0       -        -     -     -        -\n");
}

TEST(ModelListTest, JsonHasNumbersAndNames) {
  const nlohmann::json models = nlohmann::json::parse(ModelsJson(Two()))["models"];
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0]["state"], "awake");
  EXPECT_EQ(models[0]["generation_tokens"], int64_t{1} << 40);
  EXPECT_EQ(models[0]["mapped_blocks"], 200);
  EXPECT_EQ(models[0]["max_blocks"], 1000);
  EXPECT_EQ(models[1]["host_bytes"], 5 << 19);
  EXPECT_EQ(models[1]["state"], "asleep");
  EXPECT_EQ(models[1]["sleep_level"], 2);
  EXPECT_EQ(models[1]["priority"], -3);
  EXPECT_EQ(models[1]["oldest_wait_s"], 12.34);
}

TEST(ModelListTest, OneThatHasFailedIsFound) {
  v1::ListModelStatusResponse models = Two();
  EXPECT_FALSE(AnyFailed(models));
  models.mutable_models(1)->set_state(v1::ENGINE_STATE_FAILED);
  EXPECT_TRUE(AnyFailed(models));
}

}  // namespace
}  // namespace somnus::cli
