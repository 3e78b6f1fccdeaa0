#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

/// Returns the files among the inputs, and the files with this extension in the folders among them, sorted by folder.
inline std::vector<std::filesystem::path> files_in(const std::vector<std::string>& inputs,
                                                   const std::string& extension) {
  std::vector<std::filesystem::path> files;
  for (const std::string& input : inputs) {
    if (!std::filesystem::is_directory(input)) {
      files.emplace_back(input);
      continue;
    }
    std::vector<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(input))
      if (entry.path().extension() == extension) inside.push_back(entry.path());
    std::ranges::sort(inside);
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}
