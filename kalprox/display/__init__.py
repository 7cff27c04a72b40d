"""What objects show of themselves: plots on matplotlib's axes, HTML for notebooks, and progress bars.

`axes` has what all plots share, `style` the colours and fonts of figures. `plots` draws curves over runs, estimates
and matrices, `readings` what a fitted model has found. `html` makes HTML for notebooks, and `progress` shows bars. All
of it takes arrays and text: nothing here knows about models, and matplotlib is imported only to draw.
"""
