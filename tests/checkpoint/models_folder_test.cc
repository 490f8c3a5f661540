#include "checkpoint/models_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

namespace fs = std::filesystem;

class ModelsFolderTest : public testing::Test {
 protected:
  // A file that nobody reads.
  std::string File(const std::string& name) {
    const std::string path = temp_.path() + "/" + name;
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << "x";
    return path;
  }
  std::string folder() const { return temp_.path() + "/models"; }

  TempDir temp_;
};

TEST_F(ModelsFolderTest, ANameStandsForThePath) {
  const std::string path = File("elsewhere/model.gguf");
  EXPECT_EQ(*FindModelPath(folder(), "small"), "small") << "there is no folder yet";
  ASSERT_TRUE(AddToFolder(folder(), "small", path).ok());
  EXPECT_EQ(*FindModelPath(folder(), "small"), fs::canonical(path).string());
  EXPECT_TRUE(AddToFolder(folder(), "small", path).ok()) << "once more";
  EXPECT_EQ(AddToFolder(folder(), "small", File("other.gguf")).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(RemoveFromFolder(folder(), "small").ok());
  EXPECT_TRUE(fs::exists(path)) << "the model itself stays";
  EXPECT_EQ(*FindModelPath(folder(), "small"), "small");
  EXPECT_EQ(RemoveFromFolder(folder(), "small").code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelsFolderTest, WhatLiesInTheFolderHasAName) {
  File("models/one.gguf");
  File("models/two/config.json");
  File("models/no-model/readme.txt");
  File("models/notes.txt");
  const auto models = ListFolder(folder());
  ASSERT_TRUE(models.ok());
  ASSERT_EQ(models->size(), 2);
  EXPECT_EQ((*models)[0].name, "one");
  EXPECT_EQ((*models)[1].name, "two");
  EXPECT_EQ(*FindModelPath(folder(), "one"), folder() + "/one.gguf");
  EXPECT_EQ(RemoveFromFolder(folder(), "one").code(), absl::StatusCode::kFailedPrecondition)
      << "a model is never removed";
  EXPECT_TRUE(fs::exists(folder() + "/one.gguf"));
}

TEST_F(ModelsFolderTest, APathIsNoName) {
  const std::string path = File("model.gguf");
  ASSERT_TRUE(AddToFolder(folder(), "small", path).ok());
  EXPECT_EQ(*FindModelPath(folder(), "./small"), "./small");
  EXPECT_EQ(*FindModelPath(folder(), path), path);
  for (const char* name : {"", "..", "a/b", "-x", "a b", "\n"})
    EXPECT_EQ(AddToFolder(folder(), name, path).code(), absl::StatusCode::kInvalidArgument) << name;
  EXPECT_EQ(AddToFolder(folder(), "gone", path + "x").code(), absl::StatusCode::kNotFound);
}

TEST_F(ModelsFolderTest, AWrongNameAndAModelThatIsGoneAreExplained) {
  const std::string path = File("model.gguf");
  ASSERT_TRUE(AddToFolder(folder(), "smollm2", path).ok());
  const auto wrong = FindModelPath(folder(), "smolm2");
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("did you mean smollm2?"), std::string::npos) << wrong.status();
  fs::remove(path);
  EXPECT_EQ(FindModelPath(folder(), "smollm2").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(ListFolder(folder())->front().exists);
}

TEST(ModelsFolderPlaceTest, TheEnvironmentSaysWhere) {
  EXPECT_EQ(ModelsFolder({{"HOME", "/h"}}), "/h/.local/share/somnus/models");
  EXPECT_EQ(ModelsFolder({{"HOME", "/h"}, {"XDG_DATA_HOME", "/d"}}), "/d/somnus/models");
  EXPECT_EQ(ModelsFolder({{"XDG_DATA_HOME", "/d"}, {"SOMNUS_MODELS", "/m"}}), "/m");
  EXPECT_EQ(ModelsFolder({}), "");
}

TEST_F(ModelsFolderTest, AFolderThatCannotBeReadIsSaid) {
  // No folder can be below a file. (Permissions bind nobody who is root.)
  const std::string folder = File("file") + "/models", model = File("model.gguf");
  EXPECT_THAT(ListFolder(folder).status().message(), testing::HasSubstr("models: Not a directory"));
  EXPECT_THAT(AddToFolder(folder, "small", model).message(), testing::HasSubstr("models: Not a directory"));
  EXPECT_EQ(*FindModelPath(folder, "small"), "small");
}

}  // namespace
}  // namespace somnus
