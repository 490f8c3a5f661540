#include "base/build_id.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/escaping.h"

namespace somnus {
namespace {

TEST(BuildIdTest, TheProgramHasOneAndItIsHexadecimal) {
  const std::string& id = BuildId();
  // 8 bytes: the shortest that linkers make.
  ASSERT_GE(id.size(), 16u) << "the linker was not asked for a build id: " << id;
  for (const char c : id) EXPECT_TRUE(std::isxdigit(static_cast<unsigned char>(c))) << id;
  EXPECT_EQ(&BuildId(), &id);
}

TEST(BuildIdTest, ItIsTheNoteInTheProgramsOwnFile) {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string program((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The note: lengths of name and id, the type, the name, the id.
  const std::string id = absl::HexStringToBytes(BuildId());
  const uint32_t header[] = {4, static_cast<uint32_t>(id.size()), NT_GNU_BUILD_ID};
  const std::string note =
      std::string(reinterpret_cast<const char*>(header), sizeof(header)) + std::string("GNU\0", 4) + id;
  EXPECT_NE(program.find(note), std::string::npos);
}

TEST(BuildIdTest, AFilesIdIsThatOfTheProcessThatRunsIt) {
  EXPECT_EQ(BuildIdOf("/proc/self/exe").value(), BuildId());
  EXPECT_NE(BuildIdOf("/bin/sh").value(), BuildId());
  EXPECT_TRUE(absl::IsInvalidArgument(BuildIdOf("/etc/passwd").status()));
  EXPECT_TRUE(absl::IsNotFound(BuildIdOf("/no/such/program").status()));
}

}  // namespace
}  // namespace somnus
