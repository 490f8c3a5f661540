// The folders that are searched for libraries: pip's, in a fixed order, and no relative folders.

#include "base/shared_library.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace somnus {
namespace {

namespace fs = std::filesystem;

class SharedLibraryTest : public testing::Test {
 protected:
  SharedLibraryTest() : root_(fs::path(testing::TempDir()) / "shared_library") { fs::remove_all(root_); }
  ~SharedLibraryTest() override { fs::remove_all(root_); }

  std::string Put(const std::string& file) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << "no library";
    return root_ / file;
  }

  const fs::path root_;
};

TEST_F(SharedLibraryTest, PipsFoldersAreSearched) {
  const std::string blas = Put("site-packages/nvidia/cublas/lib/libcublasLt.so.12");
  const std::string thirteen = Put("site-packages/nvidia/cu13/lib/libcublasLt.so.13");
  Put("site-packages/nvidia/nccl/lib/libnccl.so.2");
  const std::string plain = Put("plain/libcublasLt.so.12");
  const std::string path = (root_ / "plain").string() + ":" + (root_ / "site-packages").string();
  const auto files = FindLibraries({"libcublasLt.so.13", "libcublasLt.so.12"}, path);
  ASSERT_TRUE(files.ok()) << files.status();
  const std::vector<std::string> wanted = {plain, thirteen, blas, "libcublasLt.so.13", "libcublasLt.so.12"};
  EXPECT_EQ(*files, wanted);
}

TEST_F(SharedLibraryTest, WithoutAPathThereAreTheNames) {
  const auto files = FindLibraries({"liba.so", "/usr/libb.so"}, "");
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(*files, (std::vector<std::string>{"liba.so", "/usr/libb.so"}));
}

TEST_F(SharedLibraryTest, FoldersThatAreNotThereAreNoError) {
  const auto files = FindLibraries({"liba.so"}, (root_ / "nowhere").string());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(*files, std::vector<std::string>{"liba.so"});
}

// A relative path would load libraries from the current directory.
TEST_F(SharedLibraryTest, RelativeFoldersAreRefused) {
  const auto files = FindLibraries({"liba.so"}, "/usr/lib:lib");
  EXPECT_TRUE(absl::IsInvalidArgument(files.status())) << files.status();
  EXPECT_NE(files.status().message().find("'lib'"), std::string::npos) << files.status();
}

TEST_F(SharedLibraryTest, OpensTheFirstThatCanBeOpened) {
  Put("folder/libm.so.6");  // a file that is no library
  setenv(kLibraryPathVariable, (root_ / "folder").c_str(), 1);
  EXPECT_TRUE(OpenLibrary({"libm.so.6"}).ok()) << "the linker's own is next";
  const auto none = OpenLibrary({"libsomnus_no_such.so.1"});
  EXPECT_TRUE(absl::IsUnavailable(none.status()));
  EXPECT_NE(none.status().message().find("libsomnus_no_such.so.1"), std::string::npos) << none.status();
  unsetenv(kLibraryPathVariable);
}

}  // namespace
}  // namespace somnus
