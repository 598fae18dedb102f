def trumpet(a, b):
    return a + b
