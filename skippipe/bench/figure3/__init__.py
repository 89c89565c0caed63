"""The paper's Figure 3: iteration times of all strategies, over models, networks, microbatch sizes and skip ratios."""
