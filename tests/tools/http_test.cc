#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/http/response_reader.h"
#include "tools/http/sse.h"

namespace somnus {
namespace {

constexpr char kChunked[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    "6\r\ndata: \r\n5\r\nhi\n\nd\r\n3\r\nata\r\n0\r\n\r\n";

TEST(ResponseReaderTest, ChunkedBodySplitAtEveryByte) {
  const std::string wire = kChunked;
  for (size_t cut = 1; cut < wire.size(); ++cut) {
    ResponseReader reader;
    std::string body;
    ASSERT_TRUE(reader.Feed(wire.substr(0, cut)).ok());
    if (reader.header_done()) body += reader.TakeBody();
    EXPECT_FALSE(reader.done()) << cut;
    ASSERT_TRUE(reader.Feed(wire.substr(cut)).ok()) << cut;
    body += reader.TakeBody();
    EXPECT_TRUE(reader.done()) << cut;
    EXPECT_EQ(body, "data: hi\n\ndata") << cut;
    EXPECT_EQ(reader.header("content-type"), "text/event-stream");
  }
}

TEST(ResponseReaderTest, TwoResponsesOnOneConnection) {
  ResponseReader reader;
  for (const int status : {200, 404}) {
    const std::string wire = "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Length: 3\r\n\r\nabc";
    ASSERT_TRUE(reader.Feed(wire).ok());
    ASSERT_TRUE(reader.done());
    EXPECT_EQ(reader.status(), status);
    EXPECT_TRUE(reader.keep_alive());
    EXPECT_EQ(reader.TakeBody(), "abc");
    reader.Reset();
    EXPECT_FALSE(reader.done());
  }
}

TEST(ResponseReaderTest, CutAnswersAndGarbageAreErrors) {
  ResponseReader cut;
  ASSERT_TRUE(cut.Feed("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc").ok());
  EXPECT_EQ(cut.FeedEof().code(), absl::StatusCode::kDataLoss);
  ResponseReader nothing;
  EXPECT_EQ(nothing.FeedEof().code(), absl::StatusCode::kDataLoss);
  ResponseReader garbage;
  EXPECT_EQ(garbage.Feed("SSH-2.0-OpenSSH_9.2\r\n\r\n").code(), absl::StatusCode::kDataLoss);
  ResponseReader until_close;
  ASSERT_TRUE(until_close.Feed("HTTP/1.1 200 OK\r\n\r\nabc").ok());
  EXPECT_TRUE(until_close.FeedEof().ok());
  EXPECT_EQ(until_close.TakeBody(), "abc");
}

TEST(SseParserTest, EventsSplitAtEveryByte) {
  const std::string wire =
      ": comment\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata: one\ndata:two\n\n\ndata: [DONE]\n\n";
  for (size_t cut = 0; cut <= wire.size(); ++cut) {
    SseParser parser;
    std::vector<std::string> events = parser.Feed(wire.substr(0, cut));
    for (std::string& event : parser.Feed(wire.substr(cut))) events.push_back(std::move(event));
    EXPECT_EQ(events, (std::vector<std::string>{"{\"a\":1}", "one\ntwo", "[DONE]"})) << cut;
  }
}

TEST(SseParserTest, AnUnfinishedEventIsNoEvent) {
  SseParser parser;
  EXPECT_TRUE(parser.Feed("data: {\"a\":1}\n").empty());
}

TEST(ResponseReaderTest, Http2IsRecognizedByItsFirstFrame) {
  const std::string settings("\0\0\x06\4\0\0\0\0\0\0\4\0\0\x40\0", 15);
  ResponseReader whole;
  EXPECT_EQ(whole.Feed(settings).code(), absl::StatusCode::kUnimplemented);
  ResponseReader other;
  EXPECT_EQ(other.Feed("SSH-2.0-OpenSSH_9.2\r\n").code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace somnus
