#include "coordinator/records/access_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

RequestRecord Record() {
  RequestRecord record;
  record.protocol = "http";
  record.client = "10.0.0.7:5123";
  record.request_id = "abc";
  record.method = "POST";
  record.route = "/v1/completions";
  record.generates = true;
  record.status = 200;
  record.begin = absl::FromUnixMillis(1790000000250);
  record.end = record.begin + absl::Milliseconds(1500);
  return record;
}

RequestSummary Summary(const RequestRecord& record) {
  RequestSummary summary;
  summary.response_id = "cmpl-abc";
  summary.model = "m";
  summary.finish_reason = "length";
  summary.prompt_tokens = 5;
  summary.completion_tokens = 7;
  summary.cached_tokens = 4;
  summary.moments.first_token = record.begin + absl::Milliseconds(250);
  return summary;
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(AccessLogTest, ALineTellsWhatARequestWasAndGot) {
  RequestRecord record = Record();
  record.summary = Summary(record);
  const Json line = Json::parse(AccessLine(record));
  EXPECT_EQ(line, Json::parse(R"({
    "time": "2026-09-21T14:13:20.250000Z", "request_id": "abc", "client": "10.0.0.7:5123", "protocol": "http",
    "listener": "clients", "method": "POST", "route": "/v1/completions", "status": 200,
    "duration_seconds": 1.5, "response_id": "cmpl-abc", "model": "m", "prompt_tokens": 5,
    "completion_tokens": 7, "cached_tokens": 4, "ttft_seconds": 0.25, "finish_reason": "length"})"));
}

TEST(AccessLogTest, WhatIsNotKnownIsNull) {
  RequestRecord record = Record();
  record.status = 429;
  record.request_id.clear();
  const Json refused = Json::parse(AccessLine(record));
  for (const char* key :
       {"request_id", "response_id", "model", "prompt_tokens", "ttft_seconds", "finish_reason"}) {
    ASSERT_TRUE(refused.contains(key)) << key;
    EXPECT_TRUE(refused[key].is_null()) << key;
  }
  record.generates = false;
  record.of_operators = true;
  const Json call = Json::parse(AccessLine(record));
  EXPECT_FALSE(call.contains("prompt_tokens"));
  EXPECT_EQ(call["listener"], "operators");
}

TEST(AccessLogTest, NoClientCanWriteALineOfItsOwn) {
  RequestRecord record = Record();
  record.request_id = std::string("a\"}\n{\"status\":200}\r\x1b[31m\xff\xe2\x80\xa8\0", 30);
  record.summary = Summary(record);
  record.summary->response_id = std::string(100000, 'x');
  const std::string line = AccessLine(record);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  for (const char c : line.substr(0, line.size() - 1)) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << int{c};
  EXPECT_EQ(Json::parse(line)["status"], 200);
  EXPECT_EQ(Json::parse(line)["response_id"].get<std::string>().size(), AccessLog::kMaxTextBytes);
}

TEST(AccessLogTest, LinesAreAppendedToTheFile) {
  const TempDir dir;
  const std::string path = dir.path() + "/access.log";
  for (int run = 0; run < 2; ++run) {
    const auto log = AccessLog::Open(path, 1 << 20);
    ASSERT_TRUE(log.ok()) << log.status();
    (*log)->Record(Record());
    (*log)->Record(Record());
  }
  std::string text = ReadAll(path);
  ASSERT_FALSE(text.empty());
  text.pop_back();
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  EXPECT_EQ(lines.size(), 4u);
  for (const std::string& line : lines) EXPECT_EQ(line + "\n", AccessLine(Record()));
}

TEST(AccessLogTest, DroppedLinesAreCountedAndToldInJson) {
  const TempDir dir;
  const std::string path = dir.path() + "/access.log";
  {
    const auto log = AccessLog::Open(path, /*queue_bytes=*/600);
    ASSERT_TRUE(log.ok()) << log.status();
    RequestRecord record = Record();
    record.generates = false;
    const RequestRecord fits = record;
    record.request_id = record.client = record.route = std::string(256, 'x');
    (*log)->Record(record);
    EXPECT_EQ((*log)->num_dropped(), 1);
    (*log)->Record(fits);
  }
  const std::vector<std::string> lines = absl::StrSplit(ReadAll(path), '\n');
  ASSERT_EQ(lines.size(), 3u) << "with the empty rest";
  EXPECT_EQ(Json::parse(lines[0]), Json({{"dropped_lines", 1}}));
  EXPECT_EQ(Json::parse(lines[1])["request_id"], "abc");
}

TEST(AccessLogTest, AFileThatCannotBeOpenedIsAnError) {
  const absl::Status status = AccessLog::Open("/no/such/folder/access.log", 1 << 20).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.message().find("/no/such/folder"), std::string::npos);
}

TEST(AccessLogTest, AFifoWithoutAReaderHoldsUpNobody) {
  const TempDir folder;
  const std::string path = folder.path() + "/log";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(AccessLog::Open(path, 1 << 20).status().message(),
            path + " is a FIFO that nobody reads, or a socket");
  const int reader = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(AccessLog::Open(path, 1 << 20).ok());
  close(reader);
}

}  // namespace
}  // namespace somnus
