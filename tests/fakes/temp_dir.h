#pragma once
// A folder of a test's own. The folder is directly under /tmp, because the path of a Unix socket has at most
// 107 bytes.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace somnus {

// The folder lives as long as the object. The destructor removes the folder with all contents, so declare the
// object before its users.
class TempDir {
 public:
  TempDir() { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/somnus-test-XXXXXX";
};

}  // namespace somnus
