// The main function of a fuzz target without libFuzzer: `fuzz_x SEEDS [RUNS]` runs the target on every file of the folder,
// then on RUNS random mutations of them, which are the same in every run.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "headroom/io/file.h"
#include "tests/fuzz/target.h"

namespace {

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

/// Returns `input` with a few bytes changed, removed, duplicated, or taken from `other`.
std::string mutate(std::string input, const std::string& other, std::mt19937_64& random) {
  static constexpr std::string_view kBytes("{}[]\":,-=/#\\ \n019eEnN\0\xFF\x7F", 25);
  for (size_t changes = 1 + random() % 4; changes > 0; --changes) {
    const size_t at = random() % (input.size() + 1);
    const size_t length = random() % 12;
    switch (random() % 6) {
      case 0:
        input.insert(at, 1, kBytes[random() % kBytes.size()]);
        break;
      case 1:
        input.erase(at, length);
        break;
      case 2:
        input.insert(at, input.substr(random() % (input.size() + 1), length));
        break;
      case 3:
        input.insert(at, other.substr(random() % (other.size() + 1), 4 * length));
        break;
      case 4:
        input.resize(at);
        break;
      default:
        if (at < input.size()) input[at] = static_cast<char>(random() % 256);
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s SEEDS [RUNS]\n", argv[0]);
    return 2;
  }
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) paths.push_back(entry.path().string());
  std::ranges::sort(paths);
  std::vector<std::string> seeds;
  for (const std::string& path : paths) seeds.push_back(headroom::read_file(path));
  const int runs = argc > 2 && !seeds.empty() ? std::stoi(argv[2]) : 0;
  std::string input;
  try {
    for (const std::string& seed : seeds) {
      input = seed;
      run(input);
    }
    for (int i = 0; i < runs; ++i) {
      std::mt19937_64 random(static_cast<uint64_t>(i));
      input = mutate(seeds[random() % seeds.size()], seeds[random() % seeds.size()], random);
      run(input);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\non the input:\n%s\n", error.what(), input.c_str());
    return 1;
  }
  std::printf("%zu seeds, %d changes of them\n", seeds.size(), runs);
  return 0;
}
